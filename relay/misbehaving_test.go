package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// fate is what becomes of the task of a handler that misbehaves.
type fate int

const (
	done      fate = iota // finished, its effect is there once
	exhausted             // a dead letter after max attempts, without effect
	committed             // a dead letter at once, as its handler committed and then failed; the effect stands
	lost                  // a dead letter after ten lost connections, without effect
)

// misdeed is what a handler does after the effects of its tasks.
type misdeed func(ctx context.Context, m *misbehavingRelay, tx outbox.Tx) error

// misbehavingHandler does what handlers must not do. Handlers first write an effect for each of
// their tasks; when one of the tasks is marked, they then do act and return its error.
type misbehavingHandler struct {
	name   string
	act    misdeed
	fate   fate
	text   string // in the dead letter's last_error
	txOnly bool   // needs a *sql.Tx, which a Batch handler does not get, or much time
	slow   bool   // runs into its timeout: one attempt will do
}

type markedPayload struct{ Marked bool }

// call is one call of a handler with the marked task of its type.
type call struct{ attempt, tasks int }

// misbehavingRelay is one relay with one task type for each handler that misbehaves.
type misbehavingRelay struct {
	name     string // of the kind of handler
	size     int    // tasks of each type, of which one is marked; for Batch handlers also the size of a batch
	handlers []misbehavingHandler
	db       *database
	relay    *running
	ended    chan struct{} // closed at the end of the test

	mu    sync.Mutex
	calls map[string][]call
}

const misbehavingAttempts = 2

// Misbehaving handlers do what handlers must not do. Whatever it is: no effect of a failed one is
// committed, its task ends as it should, every other task is done, and the relay works on.
func TestAHandlerThatMisbehavesHarmsOnlyItsOwnTask(t *testing.T) {
	testMisbehaving(t, misbehavingHandlers)
}

// testMisbehaving runs misbehaving handlers as Tx handlers, as Batch handlers of single tasks and
// of sixteen, and as functions given to Complete, with each driver, all at the same time, as most
// of it is waiting. Batch handlers of sixteen tasks are for CI; those of single tasks, and all
// handlers in all of these, need OUTBOX_TEST_LONG=1.
func testMisbehaving(t *testing.T, misbehaving func() []misbehavingHandler) {
	t.Parallel()
	relays := map[string]*misbehavingRelay{}
	for _, driver := range drivers {
		for _, m := range []*misbehavingRelay{{name: "tx", size: 3}, {name: "batch_of_1", size: 1},
			{name: "batch_of_16", size: 16}, {name: "complete", size: 3}} {
			if m.name == "batch_of_1" && !relaytest.Long || m.name == "batch_of_16" && !relaytest.CI {
				continue
			}
			relays[driver+"/"+m.name] = m
			m.db = newDatabase(t, driver)
			m.open(t, misbehaving())
		}
	}
	for name, m := range relays {
		t.Run(name, m.judge)
	}
}

// open starts the relay with the handlers and their tasks.
func (m *misbehavingRelay) open(t *testing.T, misbehaving []misbehavingHandler) {
	some := len(misbehaving) / 5 // of pairs now the one, now the other
	if m.name == "tx" {
		some = len(misbehaving) * 3 / 5
	}
	misbehaving = relaytest.Part(misbehaving, some)
	m.handlers, m.ended, m.calls = misbehaving, make(chan struct{}), map[string][]call{}
	switch m.name {
	case "complete":
		for i, c := range misbehaving {
			misbehaving[i] = c.inComplete()
		}
	case "batch_of_1", "batch_of_16":
		m.handlers = slices.DeleteFunc(misbehaving, func(c misbehavingHandler) bool { return c.txOnly })
	}
	m.db.Do(t, `CREATE TABLE seen (task_id bigint PRIMARY KEY, task_type text, marked bool);
		CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE checked (n int);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'checked late'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		EXECUTE FUNCTION refuse();
		CREATE TABLE aside (n int);
		CREATE TABLE late (task_type text)`)
	createRole(t, m.db, "aside")
	reg := handlers.New()
	for _, c := range m.handlers {
		m.register(reg, c)
		m.db.Do(t, `WITH fresh AS (
			INSERT INTO outbox.task (task_type, payload, max_attempts, timeout_ms)
			SELECT $1, jsonb_build_object('Marked', n = ($2::int + 1) / 2), $3::int, CASE n
			WHEN ($2::int + 1) / 2 THEN $4::int END FROM generate_series(1, $2) n
			RETURNING task_id, task_type, (payload->>'Marked')::bool)
			INSERT INTO seen SELECT * FROM fresh`, m.taskType(c), m.size, c.limit(), m.ownTimeout(c))
	}
	m.relay = run(t, m.db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	m.relay.Leaves("misbehavingHandlers") // stuck for ever
	t.Cleanup(func() { close(m.ended) })  // before the relay's drain
}

// inComplete is the handler as Complete has it: the outcomes are those of a Tx handler, but for
// what is named here.
func (c misbehavingHandler) inComplete() misbehavingHandler {
	switch {
	case c.name == "kills_its_backend":
		c.fate, c.text = exhausted, "pg_terminate_backend"
	case c.fate == lost: // a lost connection is an attempt: nothing else bounds the runs
		c.fate, c.text = exhausted, "left its transaction unusable"
	case c.name == "stuck_in_SQL": // for longer than its handler's timeout, as Complete has a statement timeout of its own
		c.text = "abandoned"
	case strings.HasPrefix(c.text, "rolled the transaction"):
		c.text = "rolled its transaction back"
	}
	return c
}

func (m *misbehavingRelay) taskType(c misbehavingHandler) string { return m.name + ":" + c.name }

// ownTimeout is that of the marked task in milliseconds; nil for the type's. In a Leased handler it
// holds for all of its call, so the other tasks of a type do without.
func (m *misbehavingRelay) ownTimeout(c misbehavingHandler) any {
	if c.slow && m.name == "complete" {
		return 2000
	}
	return nil
}

func (c misbehavingHandler) limit() int {
	if c.slow {
		return 1
	}
	return misbehavingAttempts
}

func (m *misbehavingRelay) register(reg *handlers.Registry, c misbehavingHandler) {
	name := m.taskType(c)
	handler := func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[markedPayload]) error {
		if strings.Contains(c.name, "of_the_relay") {
			var err error
			if ctx, err = m.findSavepoints(ctx); err != nil {
				return err
			}
		}
		marked := false
		for _, task := range tasks { // first of all: the effects may take all of a short timeout
			if task.Payload.Marked {
				marked = true
				m.mu.Lock()
				m.calls[name] = append(m.calls[name], call{task.Attempt, len(tasks)})
				m.mu.Unlock()
			}
		}
		for _, task := range tasks {
			if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
				return err
			}
		}
		if !marked {
			return nil
		}
		return c.act(ctx, m, tx)
	}
	options := []handlers.Option{handlers.Backoff(constant(time.Millisecond))}
	if c.slow && m.name != "complete" {
		options = append(options, handlers.Timeout(300*time.Millisecond))
	}
	kind, _, _ := strings.Cut(m.name, "_")
	relaytest.Register(reg, kind, name, m.size, handler, options...)
}

// judge waits for the end and compares what became of each task with its handler's fate.
func (m *misbehavingRelay) judge(t *testing.T) {
	m.db.Emptied(t, 90*time.Second)
	for _, c := range m.handlers {
		t.Run(c.name, func(t *testing.T) { m.judgeOne(t, c) })
	}
	m.db.want(t, "", "writes after the end of the claim's transaction, by", `SELECT string_agg(DISTINCT task_type, ', ')
		FROM late`)
	m.db.Enqueue(t, m.taskType(m.handlers[0]), 20)
	m.db.Emptied(t, 30*time.Second) // the relay works on
	m.relay.Stop()
}

func (m *misbehavingRelay) judgeOne(t *testing.T, c misbehavingHandler) {
	name, limit := m.taskType(c), c.limit()
	want, mates := fmt.Sprintf("attempts after %d with 0 effects", limit), "done with 1 effects"
	attempts, first := []int{1, 2}[:limit], true // that the handler sees; a batch runs first as a whole
	switch c.fate {
	case done:
		want, attempts, first = "done with 1 effects", []int{1}, false
	case committed:
		want, attempts, first = "committed after 1 with 1 effects", []int{1}, false
		if m.name == "batch_of_16" { // it was committed under way
			mates = want
		}
	case lost:
		want, attempts, first = "lost_connections after 0 with 0 effects", slices.Repeat([]int{1}, 10), false
	}
	const became = `SELECT string_agg(DISTINCT COALESCE((SELECT reason || ' after ' || attempt FROM outbox.dead_task d
		WHERE d.task_id = s.task_id), 'done')
		|| ' with ' || (SELECT count(*) FROM effect e WHERE e.task_id = s.task_id) || ' effects', ', ') FROM seen s
		WHERE s.task_type = $1 AND s.marked = $2`
	if c.fate == committed { // the dead letters follow the handler's COMMIT
		eventually(t, 30*time.Second, "dead letters are written", func() bool {
			return m.db.Text(t, became, name, true) == want
		})
	}
	m.db.want(t, want, "the task ended as", became, name, true)
	if m.size > 1 {
		m.db.want(t, mates, "the other tasks of its type ended as", became, name, false)
	}
	lastError := m.db.Text(t, `SELECT max(d.last_error) FROM seen s JOIN outbox.dead_task d USING (task_id)
		WHERE s.task_type = $1 AND s.marked`, name)
	if !strings.Contains(lastError, c.text) {
		t.Errorf("last_error %.300q, want it to contain %q", lastError, c.text)
	}
	var calls []call
	for _, attempt := range attempts {
		calls = append(calls, call{attempt, 1})
	}
	if m.name == "batch_of_16" && first {
		calls = slices.Insert(calls, 0, call{1, 16})
	} else if m.name == "batch_of_16" {
		calls[0] = call{1, 16}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	got := m.calls[name]
	if m.name == "tx" && relaytest.Grouped { // a group that it breaks is undone, and it is called again
		got, calls = slices.Compact(got), slices.Compact(calls)
	}
	if !slices.Equal(got, calls) {
		t.Errorf("the handler was called with {attempt, tasks} %v, want %v", got, calls)
	}
}
