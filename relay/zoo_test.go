package relay_test

import (
	"context"
	"database/sql"
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

// creature is a handler of the zoo. Handlers first write an effect for each of their tasks; when one of the tasks is
// marked, they then do act and return its error.
type creature struct {
	name   string
	act    func(ctx context.Context, z *zoo, tx outbox.Tx, sqlTx *sql.Tx) error
	fate   fate
	text   string // in the dead letter's last_error
	txOnly bool   // needs sqlTx, which a Batch handler does not get, or much time
	slow   bool   // runs into its timeout: one attempt will do
	reruns bool   // its claim ends before it does, so that it may be started once more meanwhile
}

type zooPayload struct{ Marked bool }

// call is one call of a handler with the marked task of its type.
type call struct{ attempt, tasks int }

// zoo is one relay with one task type for each creature.
type zoo struct {
	name      string // of the kind of handler
	size      int    // tasks of each type, of which one is marked; for Batch handlers also the size of a batch
	creatures []creature
	db        *database
	relay     *running
	ended     chan struct{} // closed at the end of the test

	mu    sync.Mutex
	calls map[string][]call
}

const zooAttempts = 2

// Handlers of the zoo do what handlers must not do. Whatever it is: no effect of a failed one is committed, its task
// ends as it should, every other task is done, and the relay works on.
func TestAHandlerThatMisbehavesHarmsOnlyItsOwnTask(t *testing.T) {
	keepZoo(t, zooCreatures)
}

// keepZoo runs creatures as Tx handlers, as Batch handlers of single tasks and of sixteen, and as
// functions given to Complete, with each driver, all at the same time, as most of it is waiting.
// Batch handlers of sixteen tasks are for CI; those of single tasks, and all creatures in all of these, need
// OUTBOX_TEST_LONG=1.
func keepZoo(t *testing.T, creatures func() []creature) {
	t.Parallel()
	zoos := map[string]*zoo{}
	for _, driver := range drivers {
		for _, z := range []*zoo{{name: "tx", size: 3}, {name: "batch_of_1", size: 1}, {name: "batch_of_16", size: 16}, {name: "complete", size: 3}} {
			if z.name == "batch_of_1" && !relaytest.Long || z.name == "batch_of_16" && !relaytest.CI {
				continue
			}
			zoos[driver+"/"+z.name] = z
			z.db = newDatabase(t, driver)
			z.open(t, creatures())
		}
	}
	for name, z := range zoos {
		t.Run(name, z.judge)
	}
}

// open lets the creatures loose.
func (z *zoo) open(t *testing.T, creatures []creature) {
	some := len(creatures) / 5 // of pairs now the one, now the other
	if z.name == "tx" {
		some = len(creatures) * 3 / 5
	}
	creatures = relaytest.Part(creatures, some)
	z.creatures, z.ended, z.calls = creatures, make(chan struct{}), map[string][]call{}
	switch z.name {
	case "complete":
		for i, c := range creatures {
			creatures[i] = c.inComplete()
		}
	case "batch_of_1", "batch_of_16":
		z.creatures = slices.DeleteFunc(creatures, func(c creature) bool { return c.txOnly })
	}
	z.db.Do(t, `CREATE TABLE seen (task_id bigint PRIMARY KEY, task_type text, marked bool)`)
	z.db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY)`)
	z.db.Do(t, `CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	z.db.Do(t, `CREATE TABLE checked (n int)`)
	z.db.Do(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'checked late'; END $$`)
	z.db.Do(t, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	z.db.Do(t, `CREATE TABLE aside (n int)`)
	createRole(t, z.db, "aside")
	z.db.Do(t, `CREATE TABLE late (task_type text)`)
	reg := handlers.New()
	for _, c := range z.creatures {
		z.register(reg, c)
		z.db.Do(t, `WITH fresh AS (
			INSERT INTO outbox.task (task_type, payload, max_attempts, timeout_ms)
			SELECT $1, jsonb_build_object('Marked', n = ($2::int + 1) / 2), $3::int, CASE n WHEN ($2::int + 1) / 2 THEN $4::int END FROM generate_series(1, $2) n
			RETURNING task_id, task_type, (payload->>'Marked')::bool)
			INSERT INTO seen SELECT * FROM fresh`, z.taskType(c), z.size, c.limit(), z.ownTimeout(c))
	}
	z.relay = run(t, z.db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	z.relay.Leaves("zooCreatures")       // stuck for ever
	t.Cleanup(func() { close(z.ended) }) // before the relay's drain
}

// inComplete is the creature as Complete has it: the outcomes are those of a Tx handler, but for
// what is named here.
func (c creature) inComplete() creature {
	switch {
	case c.fate == lost: // a lost connection is an attempt: nothing else bounds the runs
		c.fate, c.text = exhausted, "left its transaction unusable"
	case c.name == "stuck_in_SQL": // for longer than its handler's timeout, as Complete has a statement timeout of its own
		c.text = "abandoned"
	case strings.HasPrefix(c.text, "rolled the transaction"):
		c.text = "rolled its transaction back"
	}
	return c
}

func (z *zoo) taskType(c creature) string { return z.name + ":" + c.name }

// ownTimeout is that of the marked task in milliseconds; nil for the type's. In a Leased handler it
// holds for all of its call, so the other tasks of a type do without.
func (z *zoo) ownTimeout(c creature) any {
	if c.slow && z.name == "complete" {
		return 2000
	}
	return nil
}

func (c creature) limit() int {
	if c.slow {
		return 1
	}
	return zooAttempts
}

func (z *zoo) register(reg *handlers.Registry, c creature) {
	name := z.taskType(c)
	handler := func(ctx context.Context, tx outbox.Tx, sqlTx *sql.Tx, tasks []*outbox.Task[zooPayload]) error {
		if strings.Contains(c.name, "of_the_relay") {
			var err error
			if ctx, err = z.findSavepoints(ctx); err != nil {
				return err
			}
		}
		marked := false
		for _, task := range tasks {
			if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
				return err
			}
			if task.Payload.Marked {
				marked = true
				z.mu.Lock()
				z.calls[name] = append(z.calls[name], call{task.Attempt, len(tasks)})
				z.mu.Unlock()
			}
		}
		if !marked {
			return nil
		}
		return c.act(ctx, z, tx, sqlTx)
	}
	options := []handlers.Option{handlers.Backoff(constant(time.Millisecond))}
	if c.slow && z.name != "complete" {
		options = append(options, handlers.Timeout(300*time.Millisecond))
	}
	taskType := outbox.NewTaskType[zooPayload](name)
	switch z.name {
	case "complete":
		handlers.Leased(reg, taskType, func(ctx context.Context, task *outbox.Task[zooPayload]) error {
			return task.Complete(ctx, func(tx *sql.Tx) error {
				return handler(ctx, tx, tx, []*outbox.Task[zooPayload]{task})
			})
		}, options...)
		return
	case "tx":
		handlers.Tx(reg, taskType, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[zooPayload]) error {
			return handler(ctx, tx, tx, []*outbox.Task[zooPayload]{task})
		}, options...)
		return
	}
	handlers.Batch(reg, taskType, z.size, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[zooPayload]) error {
		return handler(ctx, tx, nil, tasks)
	}, options...)
}

// judge waits for the end and compares what became of each task with its handler's fate.
func (z *zoo) judge(t *testing.T) {
	z.db.Emptied(t, 90*time.Second)
	for _, c := range z.creatures {
		t.Run(c.name, func(t *testing.T) { z.judgeOne(t, c) })
	}
	if n := z.db.Int(t, `SELECT count(*) FROM late`); n != 0 {
		t.Errorf("%d writes are there that handlers made after they had ended the claim's transaction: %s", n,
			z.db.Text(t, `SELECT string_agg(DISTINCT task_type, ', ') FROM late`))
	}
	z.db.Enqueue(t, z.taskType(z.creatures[0]), 20)
	z.db.Emptied(t, 30*time.Second) // the relay works on
	z.relay.Stop()
}

func (z *zoo) judgeOne(t *testing.T, c creature) {
	name := z.taskType(c)
	const marked = ` FROM seen s WHERE s.task_type = $1 AND s.marked`
	effects := z.db.Int(t, `SELECT (SELECT count(*) FROM effect e WHERE e.task_id = s.task_id)`+marked, name)
	end := z.db.Text(t, `SELECT COALESCE((SELECT reason || ' after ' || attempt FROM outbox.dead_task d WHERE d.task_id = s.task_id), 'done')`+marked, name)
	lastError := z.db.Text(t, `SELECT (SELECT last_error FROM outbox.dead_task d WHERE d.task_id = s.task_id)`+marked, name)
	wantEffects, wantEnd := 0, fmt.Sprintf("attempts after %d", c.limit())
	switch c.fate {
	case done:
		wantEffects, wantEnd = 1, "done"
	case committed:
		wantEffects, wantEnd = 1, "committed after 1"
	case lost:
		wantEnd = "lost_connections after 0"
	}
	if effects != wantEffects || end != wantEnd {
		t.Errorf("the task ended as %q with %d effects, want %q with %d", end, effects, wantEnd, wantEffects)
	}
	if !strings.Contains(lastError, c.text) {
		t.Errorf("last_error %.300q, want it to contain %q", lastError, c.text)
	}
	// The other tasks of the type are done; those of a batch that was committed under way are what it is.
	mates := `SELECT count(*) FROM seen s WHERE s.task_type = $1 AND NOT s.marked AND (SELECT count(*) FROM effect e WHERE e.task_id = s.task_id) = 1
		AND (SELECT count(*) FROM outbox.dead_task d WHERE d.task_id = s.task_id) = $2`
	matesDead := 0
	if c.fate == committed && z.name == "batch_of_16" {
		matesDead = 1
	}
	if n := z.db.Int(t, mates, name, matesDead); n != z.size-1 {
		t.Errorf("%d of %d other tasks of the type ended with one effect and as they should", n, z.size-1)
	}
	z.judgeCalls(t, c)
}

// judgeCalls compares the attempts that the handler saw. In a batch the first call is for all and counts no attempt.
func (z *zoo) judgeCalls(t *testing.T, c creature) {
	z.mu.Lock()
	got := slices.Clone(z.calls[z.taskType(c)])
	z.mu.Unlock()
	want := []call{{1, 1}}
	switch c.fate {
	case exhausted:
		for n := 2; n <= c.limit(); n++ {
			want = append(want, call{n, 1})
		}
	case lost:
		want = slices.Repeat(want, 10)
	}
	if z.name == "batch_of_16" {
		if first := (call{1, 16}); c.fate == exhausted {
			want = slices.Insert(want, 0, first)
		} else {
			want[0] = first
		}
	}
	if !slices.Equal(got, want) && !c.reruns {
		t.Errorf("the handler was called with {attempt, tasks} %v, want %v", got, want)
	}
}
