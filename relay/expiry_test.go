package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// expired is the row of a dead letter that has expired: its columns, and those that it keeps.
const expired = `SELECT count(*) FROM outbox.dead_task WHERE reason = 'expired' AND attempt = 0
	AND last_error = 'relay: the task expired before it had begun' AND expires_at < now() AND max_attempts = 20
	AND timeline -> -1 ->> 'event' = 'dead' AND timeline -> -1 ->> 'reason' = 'expired'`

// withoutExpiryJob leaves all that expires to claims.
func withoutExpiryJob(t testing.TB, db *database) {
	t.Helper()
	db.Do(t, `DO $$
		DECLARE
			source text := pg_get_functiondef('outbox.expire_tasks'::regproc);
			due    text := 'e.expires_at <= statement_timestamp() AND e.attempt';
		BEGIN
			ASSERT strpos(source, due) > 0;
			EXECUTE replace(source, due, 'false AND e.attempt');
		END $$`)
}

func enqueueSpecs(t testing.TB, db *database, tasks ...outbox.TaskSpec) (ids []int64) {
	t.Helper()
	must(outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		enqueued, err := outbox.EnqueueMany(t.Context(), tx, tasks)
		for _, e := range enqueued {
			ids = append(ids, e.ID)
		}
		return err
	}))
	return ids
}

// Of each way to begin late only a task that has not begun in time does not run: a dead letter, or
// removed where its handler says so, and told as such.
func TestATaskThatHasNotBegunInTimeDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tx", "group", "batch", "leased", "complete"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			var ran noted[string]
			var dead noted[relay.DeadLetter]
			var ends noted[relay.TaskEnd]
			for name, opts := range map[string][]handlers.Option{"KEPT": nil, "REMOVED": {handlers.DiscardExpired()}} {
				registerKind(reg, kind, name, 3, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
					for _, task := range tasks {
						ran.add(fmt.Sprint(task.Type, " ", task.Payload.N, " ", task.ExpiresAt == nil))
					}
					return nil
				}, opts...)
			}
			var tasks []outbox.TaskSpec
			past, later := outbox.ExpiresAt(time.Now().Add(-time.Hour)), outbox.ExpiresAfter(time.Hour)
			for n, o := range [][]outbox.Option{{past}, {later}, {past}, {past}, {past}, {past, outbox.ExpiresAfter(0)},
				{outbox.RunAt(time.Now().Add(-2 * time.Hour)), past}} {
				for _, name := range []string{"KEPT", "REMOVED"} {
					tasks = append(tasks, outbox.TaskSpec{Type: name, Payload: payload{N: n}, Options: o})
				}
			}
			enqueueSpecs(t, db, tasks...)
			withoutExpiryJob(t, db)
			db.Do(t, `UPDATE outbox.task SET attempt = 1 WHERE payload ->> 'N' = '2'`)    // it is retried
			db.Do(t, `UPDATE outbox.task SET iterations = 1 WHERE payload ->> 'N' = '3'`) // it runs again
			db.Do(t, `UPDATE outbox.task SET attempted_at = now() - interval '2 hours' WHERE payload ->> 'N' = '4'`)
			once(t, db, reg, relay.Config{
				OnDead: func(_ context.Context, d relay.DeadLetter) { dead.add(d) },
				Observers: []relay.Observer{{Ended: func(_ context.Context, e relay.RunEnd) {
					for _, end := range e.Tasks {
						ends.add(end)
					}
				}}}})
			got := ran.list()
			slices.Sort(got)
			want := "KEPT 1 false,KEPT 2 false,KEPT 3 false,KEPT 5 true," +
				"REMOVED 1 false,REMOVED 2 false,REMOVED 3 false,REMOVED 5 true"
			if strings.Join(got, ",") != want {
				t.Errorf("ran %q, want %s", got, want)
			}
			db.want(t, 3, "dead letters that say why", expired+` AND task_type = 'KEPT'`)
			db.want(t, 3, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
			db.Emptied(t, time.Minute)
			for _, d := range dead.list() {
				if d.Type != "KEPT" || d.Reason != outbox.ReasonExpired || d.Attempt != 0 || d.Err == nil {
					t.Errorf("OnDead was told of %+v", d)
				}
			}
			outcomes := map[relay.Outcome]int{}
			for _, e := range ends.list() {
				outcomes[e.Outcome]++
			}
			delete(outcomes, relay.OutcomeReleased)
			if got := fmt.Sprint(len(dead.list()), outcomes); got != "3 map[dead:3 done:8 expired:3]" {
				t.Errorf("told of %s", got)
			}
			stats, err := outbox.Stats(t.Context(), db)
			must(err)
			for _, s := range stats {
				if got := fmt.Sprint(s.Type, " ", s.Dead, s.Expired, s.Finished); got != "KEPT 3 0 4" && got != "REMOVED 0 3 4" {
					t.Errorf("Stats: %s", got)
				}
			}
		})
	}
}

// A run that was lost with its process or its connection had begun, however late it is known.
func TestATaskWhoseFirstRunWasLostDoesNotExpire(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var ran noted[int64]
	for _, kind := range []string{"tx", "leased"} {
		relaytest.Register(reg, kind, strings.ToUpper(kind), 1, func(_ context.Context, _ *sql.Tx,
			tasks []*outbox.Task[payload]) error {
			ran.add(tasks[0].ID)
			return nil
		})
	}
	past := []outbox.Option{outbox.ExpiresAt(time.Now().Add(-time.Hour))}
	enqueueSpecs(t, db, outbox.TaskSpec{Type: "TX", Payload: payload{}, Options: past},
		outbox.TaskSpec{Type: "LEASED", Payload: payload{}, Options: past})
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) VALUES (1, '`+deadRelay+`', '`+deadRelay+`');
		UPDATE outbox.task SET attempt = 1, relay_id = '`+deadRelay+`' WHERE task_id = 2`)
	l := newLoops(resting(t, db, reg, &records{}), "")
	defer l.Close()
	l.done(t, "expire")
	db.want(t, 2, "tasks", `SELECT count(*) FROM outbox.task`)
	once(t, db, reg, relay.Config{})
	if got := ran.list(); len(got) != 2 {
		t.Errorf("ran %v, want both", got)
	}
}

// Upkeep ends what no claim comes to, of the relay's types and of those that nobody has: at once in
// a paused type, before its time, behind another of its key.
func TestWhatNoClaimComesToExpiresToo(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	relaytest.Register(reg, "tx", "PAUSED", 1, doNothing)
	relaytest.Register(reg, "batch", "REMOVED", 10, doNothing, handlers.DiscardExpired())
	relaytest.Register(reg, "leased", "LEASED", 1, doNothing)
	db.Do(t, `INSERT INTO outbox.task_type (task_type, paused) VALUES ('PAUSED', true);
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ('`+liveRelay+`', 'h', 1, now() + interval '1 hour', '{OTHERS}')`)
	in := func(columns, values string) {
		db.Do(t, `INSERT INTO outbox.task (expires_at, task_type, `+columns+`)
			VALUES (now() - interval '61 minutes', `+values+`)`)
	}
	in("priority", "'PAUSED', 1")
	in("run_at", "'LEASED', now() + interval '1 hour'")
	in("unique_key", "'NOBODYS', 'u'")
	in("run_at, ordering_key", "'REMOVED', now() + interval '1 hour', 'o'")
	in("ordering_key", "'REMOVED', 'o'")
	in("group_key", "'REMOVED', 'g'")
	in("priority", "'OTHERS', 1")                                      // 7: theirs to end
	in("run_at, attempt", "'LEASED', now() + interval '1 hour', 1")    // 8: it has begun
	in("run_at, iterations", "'LEASED', now() + interval '1 hour', 1") // 9: likewise
	in("payload", "'LEASED', '1'")                                     // 10: it runs
	db.Do(t, `UPDATE outbox.task SET state = 'leased', attempt = 1, relay_id = '`+liveRelay+`', lease_token =
		'`+liveRelay+`'
		WHERE task_id = 10`)
	db.Do(t, `INSERT INTO outbox.task (expires_at, task_type, run_at) VALUES (now() + interval '1 hour',
		'LEASED', now() + interval '2 hours')`)
	log := &records{}
	var ends noted[string]
	r, err := relay.New(db.DB, reg, relay.Config{Logger: slog.New(slog.NewTextHandler(log, nil)),
		Observers: []relay.Observer{{Ended: func(_ context.Context, e relay.RunEnd) {
			for _, task := range e.Tasks {
				if task.Waited < time.Hour && e.Start.IsZero() {
					ends.add(strings.TrimSpace(fmt.Sprint(e.Type, " ", task.ID, " ", task.Outcome, " ", task.Reason)))
				}
			}
		}}}})
	must(err)
	l := newLoops(r, "")
	defer l.Close()
	for l.done(t, "expire") == 0 { // a part with some is followed by another one
	}
	db.Want(t, "7 8 9 10 11", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.task`)
	db.want(t, 3, "dead letters", expired)
	db.Want(t, "3", `SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'expired'`)
	log.Want(t, 3, `a task became a dead letter`)
	log.Want(t, 1, `"outbox: tasks expired and were removed" task_type=REMOVED tasks="[4 5 6]"`)
	told := ends.list()
	slices.Sort(told)
	if got := strings.Join(told, ","); got != "LEASED 2 dead expired,NOBODYS 3 dead expired,PAUSED 1 dead "+
		"expired,REMOVED 4 expired,"+
		"REMOVED 5 expired,REMOVED 6 expired" {
		t.Errorf("told of %s", got)
	}
	if e := db.keyed(t, "NOBODYS", 1, outbox.Unique("u")); e.Outcome != outbox.OutcomeCreated {
		t.Errorf("the key of an expired task: %v", e.Outcome)
	}
	db.Do(t, `DELETE FROM outbox.relay; INSERT INTO outbox.task (expires_at, task_type, run_at)
		SELECT now(), 'LEASED', now() + interval '1 hour' FROM generate_series(1, 500);
		INSERT INTO outbox.task (expires_at, task_type) VALUES (now() - interval '59 minutes', 'NOBODYS')`)
	for l.done(t, "expire") == 0 {
	}
	db.Want(t, "8 9 10 11 12 513", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.task`)
}

// A task that the dead letters refuse, in either way, stays and is told of; the others expire.
func TestAnExpiredTaskThatCannotBeBuriedStaysAlone(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	db.Do(t, `CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER drops BEFORE INSERT ON outbox.dead_task FOR EACH ROW WHEN (NEW.priority = 1) EXECUTE
			FUNCTION drops();
		ALTER TABLE outbox.dead_task ADD CHECK (priority <> 2);
		INSERT INTO outbox.task (task_type, expires_at, priority)
		SELECT 'TX', now() - interval '1 second', n FROM generate_series(1, 2) n, generate_series(1, 100);
		INSERT INTO outbox.task (task_type, expires_at, priority) SELECT 'TX', now(), n FROM generate_series(3, 5) n`)
	l := newLoops(resting(t, db, idle(), log), "")
	defer l.Close()
	for l.done(t, "expire") == 0 {
	}
	db.Want(t, "1 2", `SELECT string_agg(DISTINCT priority::text, ' ') FROM outbox.task`)
	db.want(t, 3, "dead letters", expired)
	log.Want(t, 1, "PostgreSQL refuses the dead letters of expired tasks")
	log.Want(t, 1, "is there a trigger that drops rows?")
	db.Do(t, `DROP TRIGGER drops ON outbox.dead_task; ALTER TABLE outbox.dead_task DROP CONSTRAINT
		dead_task_priority_check`)
	for l.done(t, "expire") == 0 {
	}
	db.want(t, 203, "dead letters", expired)
}

// Who enqueues the key of a task that has expired gets a task that runs, though no relay has seen it. A key
// for a period stays taken.
func TestAnExpiredTaskHasNoUniqueKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	past := outbox.ExpiresAt(time.Now().Add(-time.Minute))
	for _, c := range []outbox.Conflict{outbox.ConflictSkip, outbox.ConflictReplace, outbox.ConflictReschedule} {
		unique := outbox.Unique("of " + string(c))
		old := db.keyed(t, "X", 1, unique, past)
		if e := db.keyed(t, "X", 2, unique, outbox.OnConflict(c)); e.Outcome != outbox.OutcomeCreated || e.ID == old.ID {
			t.Errorf("%s: %v", c, e)
		}
	}
	retried := db.keyed(t, "X", 1, outbox.Unique("retried"), past)
	db.Do(t, `UPDATE outbox.task SET attempt = 1 WHERE task_id = $1`, retried.ID)
	if e := db.keyed(t, "X", 2, outbox.Unique("retried")); e.ID != retried.ID {
		t.Errorf("of a task that is retried: %v", e)
	}
	for name, runs := range map[string]string{"one": `NULL, NULL, NULL`, "batch": `ARRAY[$1::bigint], $1, $1`} {
		lost := db.keyed(t, "X", 1, outbox.Unique(name), past)
		db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id)
			VALUES (CASE '`+name+`' WHEN 'one' THEN $1::bigint ELSE 0 END, gen_random_uuid(), '`+deadRelay+`', `+
			runs+`)`, lost.ID)
		if e := db.keyed(t, "X", 2, outbox.Unique(name)); e.ID != lost.ID {
			t.Errorf("of a task whose run was lost, %s: %v", name, e)
		}
		db.Do(t, `DELETE FROM outbox.task WHERE task_id = $1`, lost.ID)
	}
	if e := db.keyed(t, "X", 1, outbox.Unique("period", outbox.For(time.Hour)), past); e.ID != db.keyed(t, "X", 2,
		outbox.Unique("period")).ID {
		t.Errorf("of a period: %v", e)
	}
	ran := handlers.New()
	relaytest.Register(ran, "tx", "X", 1, doNothing)
	once(t, db, ran, relay.Config{})
	db.want(t, 4, "dead letters", expired)
	db.want(t, 0, "tasks", `SELECT count(*) FROM outbox.task`)
}

// An expiry counts from when a task is due, so one that is put off does not expire before.
func TestAnExpiryCountsFromWhenTheTaskIsDue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	typed := outbox.NewTaskType[payload]("X", outbox.ExpiresAfter(time.Hour))
	enqueueSpecs(t, db, typed.New(payload{}), typed.New(payload{}, outbox.After(2*time.Hour)),
		typed.New(payload{}, outbox.RunAt(time.Now().Add(3*time.Hour))),
		typed.New(payload{}, outbox.RunAt(time.Now().Add(-3*time.Hour))),
		typed.New(payload{}, outbox.After(-time.Hour), outbox.Unique("k")))
	const hours = `SELECT string_agg(COALESCE(round(extract(epoch FROM expires_at - now()) / 3600)::text,
		'never'), ' ' ORDER BY task_id)
		FROM outbox.task`
	db.Want(t, "1 3 4 -2 1", hours)
	_, err := client.Reschedule(t.Context(), admin.Filter{IDs: []int64{1, 2, 3}}, time.Now().Add(3*time.Hour),
		admin.Bulk{})
	must(err)
	db.Want(t, "never never 4 -2 1", hours)
	// A firing that was missed for too long.
	db.Do(t, `DELETE FROM outbox.task`)
	config := scheduled(relay.Schedule{Name: "s", Timing: relay.Every(yearly), Task: typed.New(payload{})})
	once(t, db, idle(), config)
	db.Do(t, `UPDATE outbox.schedule SET next_at = now() - interval '2 hours'`)
	once(t, db, idle(), config)
	db.Want(t, "-1", hours)
}

// What waits for an expired task goes on, and who wants that it runs after all redrives it.
func TestAnExpiredTaskFreesItsKeysAndIsRedriven(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var ran noted[string]
	relaytest.Register(reg, "leased", "X", 1, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		ran.add(fmt.Sprint(tasks[0].ID, tasks[0].ExpiresAt == nil))
		return nil
	})
	past := outbox.ExpiresAt(time.Now().Add(-time.Hour))
	enqueueSpecs(t, db, outbox.TaskSpec{Type: "X", Payload: payload{}, Options: []outbox.Option{past,
		outbox.OrderedBy("o")}},
		outbox.TaskSpec{Type: "X", Payload: payload{}, Options: []outbox.Option{outbox.OrderedBy("o")}},
		outbox.TaskSpec{Type: "X", Payload: payload{}, Options: []outbox.Option{past, outbox.GroupBy("g")}},
		outbox.TaskSpec{Type: "X", Payload: payload{}, Options: []outbox.Option{outbox.GroupBy("g"), outbox.Priority(1)}})
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, time.Minute)
	db.want(t, 2, "dead letters", expired)
	got, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{Reason: outbox.ReasonExpired}, admin.Bulk{})
	if err != nil || len(got.IDs) != 2 {
		t.Fatalf("redrive: %v, %v", got, err)
	}
	db.Emptied(t, time.Minute)
	all := ran.list()
	slices.Sort(all)
	if fmt.Sprint(all) != "[1 true 2 true 3 true 4 true]" {
		t.Errorf("ran %v", all)
	}
}

// A replacement brings its own time, and so does a task that is put off: a debounced one would
// expire before it is due otherwise.
func TestTheTimeOfATaskThatChangesIsThatOfTheChange(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, c := range []outbox.Conflict{outbox.ConflictReplace, outbox.ConflictReschedule} {
		name := strings.ToUpper(string(c))
		db.keyed(t, name, 1, outbox.Unique("k"), outbox.ExpiresAfter(30*time.Minute))
		left := `SELECT COALESCE(round(extract(epoch FROM expires_at - now()) / 3600)::text, 'NULL') FROM
			outbox.task WHERE task_type = '` + name + `'`
		db.keyed(t, name, 1, outbox.Unique("k"), outbox.OnConflict(c), outbox.After(time.Hour),
			outbox.ExpiresAfter(2*time.Hour))
		db.Want(t, "3", left)
		db.keyed(t, name, 1, outbox.Unique("k"), outbox.OnConflict(outbox.ConflictSkip), outbox.ExpiresAfter(4*time.Hour))
		db.Want(t, "3", left)
		db.keyed(t, name, 1, outbox.Unique("k"), outbox.OnConflict(c))
		db.Want(t, "NULL", left)
	}
}
