package relay_test

import (
	"context"
	"errors"
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

// A VACUUM FULL of one of the outbox's tables that waits behind a dump, say, lets no other statement
// at that table. What the relay cannot write meanwhile is no attempt of any task.
func TestALockOnATableOfTheOutboxIsNoAttempt(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		tables := db.Text(t, `SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
			AND relkind = 'r'`)
		for table := range strings.FieldsSeq(tables) {
			t.Run(table, func(t *testing.T) { runUnderLock(t, db, table) })
		}
	})
}

// inFlight are tasks of a kind, with one attempt, that run when the lock comes.
type inFlight struct {
	name, kind string
	opts       []handlers.Option
}

var kindsInFlight = []inFlight{
	{name: "TX", kind: "tx"},
	{name: "KEPT", kind: "tx", opts: []handlers.Option{handlers.Keep(time.Hour)}},
	{name: "BATCH", kind: "batch"},
	{name: "GROUP", kind: "tx", opts: []handlers.Option{handlers.GroupCommit(2, 0)}},
	{name: "LEASED", kind: "leased"},
	{name: "COMPLETE", kind: "complete"},
	{name: "EXTENDED", kind: "leased"},
}

// seenRuns are the runs of tasks, as their handlers saw them.
type seenRuns struct {
	mu    sync.Mutex
	begun map[int64]int
	done  int
	wrong []string
}

func (r *seenRuns) begin(task *outbox.Task[payload]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun[task.ID]++
	if task.Attempt != 1 {
		r.wrong = append(r.wrong, fmt.Sprintf("%s ran in attempt %d", task.Type, task.Attempt))
	}
	if task.Type == "LEASED" && r.begun[task.ID] > 1 {
		r.wrong = append(r.wrong, "a Leased task ran twice: its result was to be written again")
	}
}

func (r *seenRuns) end(e relay.RunEnd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, task := range e.Tasks {
		switch task.Outcome {
		case relay.Infrastructure, relay.PutOff:
			continue
		case relay.Done:
		default:
			r.wrong = append(r.wrong, fmt.Sprintf("%s ended as %v", e.Type, task.Outcome))
		}
		r.done++
	}
}

func (r *seenRuns) ended() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

func (r *seenRuns) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.begun)
}

const blockedBySQL = `SELECT pid FROM pg_stat_activity WHERE datname = current_database()
	AND $1 = ANY (pg_blocking_pids(pid))`

func runUnderLock(t *testing.T, db *database, table string) {
	const each = 2
	seen, open := &seenRuns{begun: map[int64]int{}}, make(chan struct{})
	reg := handlers.New()
	for _, k := range kindsInFlight {
		opts := append([]handlers.Option{handlers.MaxAttempts(1), retrySoon()}, k.opts...)
		relaytest.Register(reg,
			k.kind, k.name, each, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					seen.begin(task)
					if tx != nil {
						if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
							return err
						}
					}
				}
				<-open
				if tasks[0].Type == "EXTENDED" {
					return tasks[0].Extend(ctx, time.Minute)
				}
				return nil
			}, opts...)
		db.Enqueue(t, k.name, each)
	}
	r := run(t, db, reg, relay.Config{Workers: 14, Observers: []relay.Observer{{Ended: seen.end}}})
	// Of a group the second task begins after the first.
	eventually(t, time.Minute, "all handlers run", func() bool { return seen.count() >= each*len(kindsInFlight)-1 })

	locker := db.begin(t)
	var pid int
	if err := locker.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() {
		_, err := locker.Exec(`LOCK TABLE outbox.` + table + ` IN ACCESS EXCLUSIVE MODE`)
		locked <- err
	}()
	db.becomes(t, time.Minute, 1, "the lock is asked for", `SELECT count(*) FROM pg_locks WHERE pid = $1
		AND mode = 'AccessExclusiveLock' AND locktype = 'relation'`, pid)
	close(open)
	canceled := 0
	eventually(t, time.Minute, "what waits for the lock is canceled, or all is done", func() bool {
		canceled += db.Int(t, `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM (`+blockedBySQL+`) b`, pid)
		return canceled >= 16 || seen.ended() == each*len(kindsInFlight)
	})
	if err := errors.Join(<-locked, locker.Rollback()); err != nil {
		t.Fatal(err)
	}
	db.Emptied(t, time.Minute)
	r.Stop()
	if len(seen.wrong) > 0 {
		slices.Sort(seen.wrong)
		t.Errorf("%s", strings.Join(seen.wrong, "\n"))
	}
	db.wantRows(t, 0, "outbox.dead_task")
	db.wantRows(t, each*(len(kindsInFlight)-2), "effect") // plain Leased handlers leave none
	db.Do(t, `TRUNCATE effect, outbox.done_task`)
	db.wantRows(t, 0, "outbox.running")
}
