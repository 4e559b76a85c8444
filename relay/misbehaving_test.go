package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Handlers do what handlers must not do, after one effect for each of their tasks. No effect of a
// failed handler is committed, its task ends as it should, every other task is done, and the relay
// works on.
func TestAHandlerThatMisbehavesHarmsOnlyItsOwnTask(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for _, driver := range drivers {
		for kind, size := range map[string]int{"tx": 3, "batch": 16, "complete": 3} { // tasks of each type
			tests[driver+" "+kind] = func(t *testing.T) { testMisdeeds(t, newDatabase(t, driver), kind, size) }
		}
	}
	relaytest.Together(t, needs.Few(t, tests, drivers[0]+" tx", drivers[0]+" batch"))
}

type markedPayload struct{ Marked bool }

// testMisdeeds runs each misdeed for one marked task of several.
func testMisdeeds(t *testing.T, db *database, kind string, size int) {
	db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE late (task_type text)`)
	reg, ended := handlers.New(), make(chan struct{})
	some := map[string]misdeed{}
	for name, m := range misdeeds(ended) {
		if m.slowest && kind == "batch" {
			continue
		}
		some[name] = m
		opts := []handlers.Option{handlers.MaxAttempts(1), retrySoon()}
		if m.slow {
			opts = append(opts, handlers.Timeout(time.Second))
		}
		relaytest.Register(reg, kind, name, size,
			func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[markedPayload]) error {
				marked := false
				for _, task := range tasks {
					marked = marked || task.Payload.Marked
					if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
						return err
					}
				}
				if !marked {
					return nil
				}
				return m.do(ctx, tx)
			}, opts...)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload)
			SELECT $1, jsonb_build_object('Marked', n = 2) FROM generate_series(1, $2) n`, name, size)
	}
	db.Do(t, `CREATE TABLE seen AS SELECT task_id, task_type, payload->>'Marked' = 'true' AS marked FROM outbox.task`)
	r := run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
	r.Leaves("misdeeds")               // stuck for ever
	t.Cleanup(func() { close(ended) }) // before the relay's drain
	db.Emptied(t, 90*time.Second)
	for name, m := range some {
		fate, mates, text := m.fate, done, m.text
		if kind == "complete" && m.inComplete != "" { // nothing else bounds the runs of a lost connection
			fate, text = failed, m.inComplete
		}
		if fate == committed && kind == "batch" {
			mates = committed
		}
		const became = `SELECT string_agg(DISTINCT COALESCE((SELECT reason FROM outbox.dead_task d
			WHERE d.task_id = s.task_id), 'done') || ' with ' || (SELECT count(*) FROM effect e WHERE e.task_id = s.task_id)
			|| ' effects', ', ') FROM seen s WHERE s.task_type = $1 AND s.marked = $2`
		if fate == committed { // the dead letters follow the handler's COMMIT
			eventually(t, 30*time.Second, "dead letters are written", func() bool {
				return db.Text(t, became, name, true) == fate
			})
		}
		db.want(t, fate, name+": the task ended as", became, name, true)
		db.want(t, mates, name+": the other tasks ended as", became, name, false)
		if got := db.Text(t, `SELECT max(d.last_error) FROM seen s JOIN outbox.dead_task d USING (task_id)
			WHERE s.task_type = $1 AND s.marked`, name); !strings.Contains(got, text) {
			t.Errorf("%s: last_error %.300q, want it to contain %q", name, got, text)
		}
	}
	db.wantRows(t, 0, `late`) // nothing in a later transaction is committed
	db.Enqueue(t, "nil", 20)
	db.Emptied(t, 30*time.Second)
	r.Stop()
}

// A handler's goroutine may outlive it and go on writing through its transaction. What the handler
// fails is undone nevertheless and its failure recorded, and what it did is done.
func TestAGoroutineThatOutlivesItsHandlerChangesNothingOfItsResult(t *testing.T) {
	t.Parallel()
	tasks, attempts := 6, 2
	if relaytest.Grouped { // the transaction of more tasks goes on, as handlers.GroupCommit says
		tasks, attempts = 1, 8
	}
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE TABLE leaked (task_id bigint)`)
		var leaked sync.WaitGroup
		reg := handlers.New()
		for name, result := range map[string]error{"TX": nil, "FAILS": errAlways} {
			relaytest.Register(reg, "tx", name, 1,
				func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
					err := effect(ctx, tx, tasks[0].ID, tasks[0].Attempt)
					leaked.Go(func() {
						for leak := error(nil); !errors.Is(leak, sql.ErrTxDone); {
							_, leak = tx.ExecContext(context.Background(),
								`INSERT INTO leaked SELECT $1 WHERE $2 = 'FAILS'`, tasks[0].ID, name)
						}
					})
					return errors.Join(err, result)
				}, handlers.MaxAttempts(attempts), retrySoon())
			db.Enqueue(t, name, tasks)
		}
		run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 60*time.Second)
		leaked.Wait()
		db.want(t, fmt.Sprint(tasks, " ", tasks), "tasks with an effect, and effects",
			`SELECT count(DISTINCT task_id) || ' ' || count(*) FROM effect`)
		db.wantRows(t, 0, `leaked`) // by goroutines whose handlers had failed
		db.wantRows(t, tasks, `outbox.dead_task WHERE task_type = 'FAILS' AND attempt = $1 AND reason = 'attempts'
			AND last_error LIKE '%always%'`, attempts)
	})
}
