package relay_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// parsing is a Config that fires stored schedules: of cron expressions, and of durations.
func parsing(schedules ...relay.Schedule) relay.Config {
	config := scheduled(schedules...)
	config.ParseSchedule = func(spec string) relay.Timing {
		switch d, err := time.ParseDuration(spec); {
		case spec == "panics":
			panic("boom")
		case spec == "nil":
			return nil
		case err == nil:
			return relay.Every(d)
		}
		return relay.Cron(cron.ParseStandard, spec)
	}
	return config
}

func scheduleOf(t testing.TB, db *database, name string) admin.Schedule {
	t.Helper()
	all, err := relaytest.Admin(t, db.DB).Schedules(t.Context())
	must(err)
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no schedule %s", name)
	return admin.Schedule{}
}

const firedTasks = `SELECT COALESCE(string_agg(task_type || ' ' || payload, ', ' ORDER BY task_id), '')
	FROM outbox.task`

// Of a stored schedule each firing enqueues one task, as of one in the code, and each change of it counts
// from the next firing on.
func TestAStoredScheduleFiresAsOneOfTheCodeDoes(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client, err := admin.New(db.DB, admin.Config{Actor: "ada", Tool: "test"})
	must(err)
	put := func(s admin.Schedule, n int) {
		t.Helper()
		must(client.PutSchedule(t.Context(), s, map[string]int{"n": n}))
	}
	fire := func() {
		t.Helper()
		db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
		once(t, db, idle(), parsing())
		once(t, db, idle(), parsing())
	}
	nightly := admin.Schedule{Name: "nightly", Type: "REPORT", Spec: "30 4 * * *", TimeZone: "America/New_York"}
	put(nightly, 1)
	if s := scheduleOf(t, db, "nightly"); !s.NextAt.IsZero() || !s.Stored {
		t.Errorf("before a relay has seen it: %+v", s)
	}
	once(t, db, idle(), relay.Config{})
	db.want(t, 0, "first firings by a relay without a parser", `SELECT count(next_at) FROM outbox.schedule`)
	once(t, db, idle(), parsing())
	zone, err := time.LoadLocation("America/New_York")
	must(err)
	first := scheduleOf(t, db, "nightly")
	if at := first.NextAt.In(zone); at.Hour() != 4 || at.Minute() != 30 || time.Until(at) > 25*time.Hour {
		t.Errorf("it fires at %v", at)
	}
	db.Want(t, "", firedTasks)
	fire()
	db.Want(t, `REPORT {"n": 1}`, firedTasks)
	if s := scheduleOf(t, db, "nightly"); !s.NextAt.Equal(first.NextAt) || s.LastAt.IsZero() {
		t.Errorf("after a firing: %+v", s)
	}
	nightly.Type = "OTHER"
	put(nightly, 2)
	if s := scheduleOf(t, db, "nightly"); !s.NextAt.Equal(first.NextAt) || s.CreatedAt != first.CreatedAt {
		t.Errorf("with another payload: %+v", s)
	}
	fire()
	db.Want(t, `REPORT {"n": 1}, OTHER {"n": 2}`, firedTasks)
	nightly.Spec, nightly.TimeZone = "24h", ""
	put(nightly, 3)
	once(t, db, idle(), parsing())
	if s := scheduleOf(t, db, "nightly"); s.NextAt.UTC().Hour() != 0 {
		t.Errorf("with another spec it fires at %v", s.NextAt)
	}
	must(client.RunScheduleNow(t.Context(), "nightly"))
	next := scheduleOf(t, db, "nightly")
	once(t, db, idle(), parsing())
	db.Want(t, `REPORT {"n": 1}, OTHER {"n": 2}, OTHER {"n": 3}`, firedTasks)
	if s := scheduleOf(t, db, "nightly"); !s.NextAt.After(next.NextAt) || s.NextAt.UTC().Hour() != 0 {
		t.Errorf("after a run by hand: %+v", s)
	}
	nightly.Spec = "48h"
	put(nightly, 4)
	must(client.RunScheduleNow(t.Context(), "nightly")) // no relay has seen the change
	once(t, db, idle(), parsing())
	db.Want(t, `{"n": 4}`, `SELECT payload FROM outbox.task ORDER BY task_id DESC LIMIT 1`)
	must(client.PauseSchedule(t.Context(), "nightly"))
	if err := client.RunScheduleNow(t.Context(), "nightly"); !errors.Is(err, outbox.ErrInvalidOption) {
		t.Errorf("now, while it is paused: %v", err)
	}
	fire()
	must(client.RemoveSchedule(t.Context(), "nightly"))
	once(t, db, idle(), parsing())
	db.want(t, 4, "tasks", `SELECT count(*) FROM outbox.task`)
	db.want(t, 0, "schedules", `SELECT count(*) FROM outbox.schedule`)
	if err := client.RunScheduleNow(t.Context(), "nightly"); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("now, of none: %v", err)
	}
	db.Want(t, "pause_schedule 1, put_schedule 4, remove_schedule 1, run_schedule 2",
		`SELECT string_agg(line, ', ' ORDER BY line)
		FROM (SELECT action || ' ' || count(*) FROM outbox.audit WHERE target = 'nightly' GROUP BY action) a (line)`)
}

// A relay that runs already fires what is stored, changed and removed meanwhile; two fire each once.
func TestRelaysFireWhatIsStoredWhileTheyRun(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	for range 2 {
		run(t, db, idle(), parsing())
	}
	often := admin.Schedule{Name: "often", Type: "T", Spec: "50ms", CatchUp: outbox.CatchUpAll}
	must(client.PutSchedule(t.Context(), often, nil))
	enough := func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) >= 10 }
	eventually(t, time.Minute, "ten firings", enough)
	db.Do(t, `UPDATE outbox.schedule SET wrong = 'as a relay of an older build said'`)
	mended := func() bool { return scheduleOf(t, db, "often").Wrong == "" }
	eventually(t, time.Minute, "a firing that says that nothing is wrong", mended)
	must(client.RemoveSchedule(t.Context(), "often"))
	db.want(t, 0, "firings with two tasks or none between them", `SELECT count(*) FROM (
		SELECT run_at - lag(run_at) OVER (ORDER BY run_at) AS pause FROM outbox.task) t WHERE pause <> interval '50 ms'`)
}

// What a relay cannot fire says why where it is read, once in the log, and harms no other schedule.
func TestAStoredScheduleThatCannotFireSaysWhy(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	specs := map[string]string{"nonsense": "Cron: \"nonsense\"", "panics": "ParseSchedule panicked: panic: boom",
		"nil": "ParseSchedule does not understand \"nil\"", "1ns": "Every(1ns)", "24h": "",
		"0 0 30 2 *": "its Next gave no further time"}
	for spec := range specs {
		must(client.PutSchedule(t.Context(), admin.Schedule{Name: spec, Type: "T", Spec: spec}, nil))
	}
	log := once(t, db, idle(), parsing())
	for spec, wrong := range specs {
		s := scheduleOf(t, db, spec)
		if (wrong == "") != (s.Wrong == "") || !strings.HasPrefix(s.Wrong, wrong) || s.NextAt.IsZero() != (wrong != "") {
			t.Errorf("%s: wrong is %q, next is %v; want %q", spec, s.Wrong, s.NextAt, wrong)
		}
	}
	if n := strings.Count(log, "a stored schedule cannot be fired"); n != 4 {
		t.Errorf("%d records, want 4:\n%s", n, log)
	}
	must(client.PutSchedule(t.Context(), admin.Schedule{Name: "nil", Type: "T", Spec: "1h"}, nil))
	once(t, db, idle(), parsing())
	if s := scheduleOf(t, db, "nil"); s.Wrong != "" || s.NextAt.IsZero() {
		t.Errorf("when it is mended: %+v", s)
	}
}

// storedReport stores a schedule that a relay has seen.
func storedReport(t testing.TB, db *database) (*admin.Client, admin.Schedule) {
	t.Helper()
	client := relaytest.Admin(t, db.DB)
	mine := admin.Schedule{Name: "report", Type: "STORED", Spec: "1h"}
	must(client.PutSchedule(t.Context(), mine, nil))
	once(t, db, idle(), parsing())
	return client, mine
}

// A name is the code's as soon as a relay has it.
func TestAScheduleOfTheCodeTakesTheNameOfAStoredOne(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client, mine := storedReport(t, db)
	code := relay.Schedule{Name: "report", Timing: relay.Every(yearly),
		Task: outbox.NewTaskType[int]("CODE", outbox.Priority(7)).New(1)}
	log := once(t, db, idle(), parsing(code))
	if s := scheduleOf(t, db, "report"); s.Stored || s.Type != "CODE" || s.TimeZone != "" {
		t.Errorf("it is %+v", s)
	}
	if !strings.Contains(log, "takes the place of a stored one of its name") {
		t.Errorf("the log has no warning:\n%s", log)
	}
	if err := client.PutSchedule(t.Context(), mine, nil); !errors.Is(err, admin.ErrScheduleInCode) {
		t.Errorf("PutSchedule of its name: %v", err)
	}
	must(client.RunScheduleNow(t.Context(), "report")) // with the options of the code
	once(t, db, idle(), parsing(code))
	db.Want(t, "CODE 1 7", `SELECT task_type || ' ' || payload || ' ' || priority FROM outbox.task`)
}

// A relay of before migration 8 takes a name by its definition alone.
func TestAStoredScheduleThatAnOlderRelayTookIsTheCodes(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client, mine := storedReport(t, db)
	db.Do(t, `UPDATE outbox.schedule SET definition = md5('of the code'), timing = md5('its'), next_at = now()`)
	once(t, db, idle(), parsing())
	db.want(t, 0, "firings as a stored one", `SELECT count(*) FROM outbox.task`)
	if err := client.PutSchedule(t.Context(), mine, nil); !errors.Is(err, admin.ErrScheduleInCode) {
		t.Errorf("PutSchedule of its name: %v", err)
	}
}

// Bad input is refused before anything is written.
func TestPutScheduleRefusesWhatNoRelayCouldFire(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	good := admin.Schedule{Name: "a", Type: "T", Spec: "1h"}
	for about, c := range map[string]struct {
		change  func(s *admin.Schedule)
		payload any
		want    error
	}{
		"no name":     {func(s *admin.Schedule) { s.Name = "" }, nil, outbox.ErrInvalidOption},
		"a long name": {func(s *admin.Schedule) { s.Name = strings.Repeat("n", 129) }, nil, outbox.ErrInvalidOption},
		"no spec":     {func(s *admin.Schedule) { s.Spec = "" }, nil, outbox.ErrInvalidOption},
		"no type":     {func(s *admin.Schedule) { s.Type = "" }, nil, outbox.ErrInvalidType},
		"no JSON":     {func(*admin.Schedule) {}, json.RawMessage("{"), outbox.ErrInvalidPayload},
		"a large one": {func(*admin.Schedule) {}, json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`),
			outbox.ErrPayloadTooLarge},
		"no zone":       {func(s *admin.Schedule) { s.TimeZone = "Europe/Nowhere" }, nil, outbox.ErrInvalidOption},
		"the machine's": {func(s *admin.Schedule) { s.TimeZone = "Local" }, nil, outbox.ErrInvalidOption},
		"a catch-up":    {func(s *admin.Schedule) { s.CatchUp = "twice" }, nil, outbox.ErrInvalidOption},
	} {
		s := good
		c.change(&s)
		if err := client.PutSchedule(t.Context(), s, c.payload); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", about, err, c.want)
		}
	}
	db.want(t, 0, "schedules", `SELECT count(*) FROM outbox.schedule`)
}

// Whatever is wrong with one schedule, the others fire: a parser or a Next that hangs, options that are refused
// by now, a row that somebody holds.
func TestNoScheduleHoldsUpTheOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	for _, spec := range []string{"hangs", "next hangs", "held"} {
		must(client.PutSchedule(t.Context(), admin.Schedule{Name: spec, Type: "T", Spec: spec}, nil))
	}
	defer hold(t, db, `SELECT FROM outbox.schedule WHERE name = 'held' FOR UPDATE`)()
	config := scheduled(
		relay.Schedule{Name: "good", Timing: relay.Every(50 * time.Millisecond),
			Task: outbox.NewTaskType[int]("GOOD").New(1)},
		relay.Schedule{Name: "refused", Timing: relay.Every(50 * time.Millisecond),
			Task: outbox.NewTaskType[int]("REFUSED").New(1, outbox.ExpiresAt(time.Now()))})
	forever := make(chan struct{})
	defer close(forever)
	config.ParseSchedule = func(spec string) relay.Timing {
		switch spec {
		case "hangs":
			<-forever
		case "next hangs":
			return nextFunc(func(t time.Time) time.Time { <-forever; return t.Add(time.Hour) })
		}
		return relay.Every(time.Hour)
	}
	r := run(t, db, idle(), config)
	r.Leaves("TestNoScheduleHoldsUpTheOthers")
	wrong := func(name, text string) func() bool {
		return func() bool { return strings.Contains(scheduleOf(t, db, name).Wrong, text) }
	}
	eventually(t, time.Minute, "the parser is given up", wrong("hangs", "did not return within"))
	eventually(t, time.Minute, "the Next is given up", wrong("next hangs", "did not return within"))
	before := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'GOOD'`)
	eventually(t, time.Minute, "the good one fires", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'GOOD'`) > before+5
	})
	r.Log.Want(t, 1, `the task of a schedule cannot be enqueued" schedule=refused`)
}

// A task that is bound to another schema would never be enqueued.
func TestAScheduleOfAnotherSchemaIsRefusedByNew(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	task := outbox.NewTaskType[int]("T").In(outbox.In("tenant_a")).New(1)
	_, err := relay.New(db.DB, idle(), scheduled(relay.Schedule{Name: "s", Timing: relay.Every(time.Hour), Task: task}))
	if !errors.Is(err, outbox.ErrInvalidOption) {
		t.Errorf("got %v", err)
	}
}

// A firing that RunScheduleNow has waited for is not repeated by it.
func TestRunScheduleNowRepeatsNoFiring(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	task := outbox.NewTaskType[int]("T").New(1)
	config := scheduled(relay.Schedule{Name: "s", Timing: relay.Every(time.Second), Task: task,
		CatchUp: outbox.CatchUpAll})
	once(t, db, idle(), config)
	tx, err := db.Begin()
	must(err)
	defer func() { _ = tx.Rollback() }()
	var began time.Time
	must(tx.QueryRow(`SELECT now()`).Scan(&began))
	enough := func() bool { once(t, db, idle(), config); return db.Int(t, `SELECT count(*) FROM outbox.task`) > 1 }
	eventually(t, time.Minute, "two firings", enough)
	_, err = tx.Exec(`SELECT outbox.fire_schedule('s')`)
	must(err)
	must(tx.Commit())
	once(t, db, idle(), config)
	db.want(t, 0, "firings that came twice", `SELECT count(*) FROM (
		SELECT run_at FROM outbox.task GROUP BY run_at HAVING count(*) > 1) AS twice`)
}
