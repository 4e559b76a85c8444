package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/tail"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// tailed is what a tail tells.
type tailed struct {
	noted[admin.TailEvent]
	stop func()
}

// lookAt starts a tail, which listens when it returns.
func lookAt(t *testing.T, db *database, filter admin.TailFilter, schemaName ...string) *tailed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	listening, done, out := make(chan struct{}), make(chan error, 1), &tailed{}
	var once sync.Once
	go func() {
		done <- relaytest.Admin(t, db.DB, schemaName...).Tail(ctx, db.URL, filter, func(e admin.TailEvent) error {
			if e.Event == admin.TailListening {
				once.Do(func() { close(listening) })
			}
			out.add(e)
			return nil
		})
	}()
	out.stop = func() {
		cancel()
		if err, ended := <-done; ended && err != nil {
			t.Errorf("the tail ended with %v", err)
		}
		close(done)
		out.stop = func() {}
	}
	t.Cleanup(func() { out.stop() })
	select {
	case <-listening:
	case err := <-done:
		t.Fatal(err)
	}
	return out
}

// of is the events of tasks of each type, in their order: those of one task follow each other.
func (l *tailed) of() map[string]string {
	tasks, types := map[int64][]string{}, map[int64]string{}
	for _, e := range l.list() {
		if e.TaskID == 0 {
			continue
		}
		text := e.Event
		if e.Reason != "" {
			text += ":" + string(e.Reason)
		}
		tasks[e.TaskID] = append(tasks[e.TaskID], fmt.Sprintf("%s %d", text, e.Attempt))
		types[e.TaskID] = e.Type
	}
	out := map[string]string{}
	for id, events := range tasks {
		text := strings.Join(events, ", ")
		if before := out[types[id]]; before != "" && before != text {
			text = before + " | " + text
		}
		out[types[id]] = text
	}
	return out
}

// becomes waits until the tail has told so.
func (l *tailed) becomes(t *testing.T, want map[string]string) {
	t.Helper()
	for range 6000 {
		if fmt.Sprint(l.of()) == fmt.Sprint(want) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	for name := range want {
		if got := l.of()[name]; got != want[name] {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want[name])
		}
	}
	t.Fatalf("the tail told %v", l.of())
}

func TestATailTellsEachOutcomeOfEachKindInItsOrder(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		look := lookAt(t, db, admin.TailFilter{})
		fails := errors.New("secret\nof the handler")
		reg, want := handlers.New(), map[string]string{}
		results := map[string]struct {
			err  error
			want string
		}{
			"done":      {nil, "begun 1, done 1"},
			"discarded": {handlers.Discard(fails), "begun 1, discarded 1"},
			"failed":    {fails, "begun 1, failed 1"},
			"dead":      {handlers.Dead(fails), "begun 1, dead:handler 1"},
			"snoozed":   {handlers.Snooze(time.Hour), "begun 1, snoozed 1"},
			"throttled": {handlers.RetryAfter(time.Hour, fails), "begun 1, throttled 1"},
			"run_again": {handlers.RunAgain(time.Hour), "begun 1, run_again 1"},
		}
		hour := handlers.Backoff(constant(time.Hour))
		for _, kind := range []string{"tx", "group", "batch", "leased"} {
			for name, r := range results {
				taskType := kind + "_" + name
				registerKind(reg, kind, taskType, 10, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
					return r.err
				}, hour)
				want[taskType] = r.want
				n := 2
				if name == "failed" && kind == "batch" { // a batch that fails as a whole runs one by one
					n = 1
				}
				db.Enqueue(t, taskType, n)
			}
		}
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, expires_at) VALUES ('tx_done', '{}', now() - interval '1 h')`)
		want["tx_done"] = "begun 1, done 1"
		once(t, db, reg, relay.Config{})
		look.becomesWithExpired(t, want)
		for _, e := range look.list() {
			wantError := slices.Contains([]string{"failed", "dead", "throttled"}, e.Event) && e.Reason != outbox.ReasonExpired
			if e.TaskID > 0 && strings.Contains(e.Error, "secret") != wantError || e.TaskID > 0 && e.RelayID == "" ||
				e.TaskID > 0 && string(e.Kind) == "" || e.Event == "done" && e.Duration <= 0 || e.At.IsZero() {
				t.Errorf("an event is %+v", e)
			}
		}
	})
}

// becomesWithExpired is becomes, where one task of the type tx_done has expired.
func (l *tailed) becomesWithExpired(t *testing.T, want map[string]string) {
	t.Helper()
	eventually(t, time.Minute, "the expired task is told", func() bool {
		return slices.ContainsFunc(l.list(), func(e admin.TailEvent) bool { return e.Reason == outbox.ReasonExpired })
	})
	l.mu.Lock()
	l.all = slices.DeleteFunc(l.all, func(e admin.TailEvent) bool { return e.Reason == outbox.ReasonExpired })
	l.mu.Unlock()
	l.becomes(t, want)
}

func TestATailTellsOnlyWhatItsFilterNames(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	types := lookAt(t, db, admin.TailFilter{Types: []string{"B"}})
	events := lookAt(t, db, admin.TailFilter{Types: []string{"A", "B"}, Events: []string{"done"}})
	reg := handlers.New()
	for _, name := range []string{"A", "B", "C"} {
		registerKind(reg, "tx", name, 1, doNothing)
		db.Enqueue(t, name, 1)
	}
	once(t, db, reg, relay.Config{})
	types.becomes(t, map[string]string{"B": "begun 1, done 1"})
	events.becomes(t, map[string]string{"A": "done 1", "B": "done 1"})
}

// A run was lost with its process: the journal has it, and the relay that finds it tells.
func TestATailTellsLostRuns(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tx", "group", "batch"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			look := lookAt(t, db, admin.TailFilter{})
			db.Enqueue(t, "AGAIN", 1)
			db.Enqueue(t, "BURIED", 1)
			db.Do(t, `UPDATE outbox.task SET max_attempts = 1 WHERE task_type = 'BURIED'`)
			db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(),
				gen_random_uuid() FROM outbox.task`)
			reg := handlers.New()
			for _, name := range []string{"AGAIN", "BURIED"} {
				registerKind(reg, kind, name, 2, doNothing)
			}
			once(t, db, reg, relay.Config{})
			look.becomes(t, map[string]string{"AGAIN": "lost 1, begun 2, done 2", "BURIED": "lost 1, dead:attempts 1"})
		})
	}
}

// listen returns the texts that relays have sent so far, each time it is called: a text of its own ends
// the wait.
func listen(t *testing.T, db *database, schemaName string) (texts func() []string) {
	t.Helper()
	sub, err := pg.Subscribe(t.Context(), db.URL, tail.Channel(schemaName))
	noErr(t, err)
	t.Cleanup(sub.Close)
	n := 0
	return func() (out []string) {
		n++
		end := fmt.Sprint("end ", n)
		db.Do(t, `SELECT pg_notify($1, $2)`, tail.Channel(schemaName), end)
		for text := range sub.Notified {
			if text.Extra == end {
				break
			}
			out = append(out, text.Extra)
		}
		return out
	}
}

func TestNothingIsSentWhileNobodyLooks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	texts := listen(t, db, "outbox")
	runs := func() int {
		for _, kind := range []string{"TX", "BATCH", "LEASED"} {
			db.Enqueue(t, kind, 3)
		}
		once(t, db, all(), relay.Config{})
		return len(texts())
	}
	for request, told := range map[string]bool{
		"0": false, "extract(epoch FROM now())::bigint - 1": false, "extract(epoch FROM now())::bigint + 25": true,
		"extract(epoch FROM now())::bigint + 3600": false, "9223372036854775807": false,
	} {
		db.Do(t, `SELECT setval('outbox.tail', `+request+`)`)
		if n := runs(); n > 0 != told {
			t.Errorf("with the request %s %d texts were sent", request, n)
		}
	}
	db.Do(t, `SELECT setval('outbox.tail', 0)`)
}

// A relay that runs begins and ends with its heartbeats.
func TestARelayTellsFromTheStartOfATailUntilAfterItsEnd(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	texts := listen(t, db, "outbox")
	r := run(t, db, all(), relay.Config{PollInterval: 20 * time.Millisecond})
	db.Enqueue(t, "BATCH", 1)
	db.Emptied(t, time.Minute)
	look := lookAt(t, db, admin.TailFilter{})
	eventually(t, time.Minute, "the relay tells", func() bool {
		db.Enqueue(t, "TX", 1)
		db.Emptied(t, time.Minute)
		return look.of()["TX"] != ""
	})
	look.stop()
	db.Do(t, `SELECT setval('outbox.tail', 0)`) // the rest of its 15 s
	for range 2 {                               // a beat may be under way
		beat := db.Text(t, `SELECT alive_until FROM outbox.relay`)
		eventually(t, time.Minute, "a heartbeat comes", func() bool {
			return db.Text(t, `SELECT alive_until FROM outbox.relay`) != beat
		})
	}
	db.Enqueue(t, "LEASED", 1)
	db.Emptied(t, time.Minute)
	r.Stop() // sends what is left
	sent := fmt.Sprint(texts())
	for taskType, want := range map[string]bool{"BATCH": false, "TX": true, "LEASED": false} {
		if got := strings.Contains(sent, taskType); got != want {
			t.Errorf("%s was told: %v", taskType, got)
		}
	}
}

func TestTwoTailsAndAnotherSchema(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	name := "a" + strings.Repeat("long_", 12) + "nm"
	noErr(t, schema.Migrate(t.Context(), db.DB, schema.Schema(name)))
	here, too := lookAt(t, db, admin.TailFilter{}), lookAt(t, db, admin.TailFilter{})
	there := lookAt(t, db, admin.TailFilter{}, name)
	db.Enqueue(t, "TX", 2)
	once(t, db, all(), relay.Config{})
	for _, look := range []*tailed{here, too} {
		look.becomes(t, map[string]string{"TX": "begun 1, done 1"})
	}
	db.Do(t, `INSERT INTO `+name+`.task (task_type, payload) VALUES ('LEASED', '{}')`)
	once(t, db, leased(func(context.Context, *outbox.Task[payload]) error { return nil }), relay.Config{Schema: name})
	there.becomes(t, map[string]string{"LEASED": "begun 1, done 1"})
	if got := here.of(); len(got) != 1 {
		t.Errorf("a tail told of another schema: %v", got)
	}
}

// The words of events are those of outcomes, and two more.
func TestTheEventsOfATailAreTheOutcomes(t *testing.T) {
	want := append(decide.Outcomes(), admin.TailBegun, admin.TailLost)
	got := tail.Events()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the events are\n%q, the outcomes\n%q", got, want)
	}
}
