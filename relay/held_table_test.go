package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A VACUUM FULL of one of the outbox's tables that waits behind a dump, say, lets no other statement
// at that table. What the relay cannot write meanwhile is no attempt of any task.
func TestALockOnATableOfTheOutboxIsNoAttempt(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		tables := "task running done_task relay"
		if needs.InCI() {
			tables = db.Text(t, `SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
				AND relkind = 'r'`)
		}
		for table := range strings.FieldsSeq(tables) {
			t.Run(table, func(t *testing.T) { runUnderLock(t, db, table) })
		}
	})
}

const blockedBySQL = `SELECT pid FROM pg_stat_activity WHERE datname = current_database()
	AND $1 = ANY (pg_blocking_pids(pid))`

// runUnderLock runs tasks of each kind, with one attempt, that run when the lock comes.
func runUnderLock(t *testing.T, db *database, table string) {
	const each = 2
	var begun, leased atomic.Int64
	reg, open, told := handlers.New(), make(chan struct{}), &heard{}
	kinds := map[string]string{"TX": "tx", "KEPT": "tx", "BATCH": "batch", "GROUP": "tx", "LEASED": "leased",
		"COMPLETE": "complete", "EXTENDED": "leased"}
	more := map[string]handlers.Option{"KEPT": handlers.Retention(time.Hour), "GROUP": handlers.GroupCommit(2, 0)}
	for name, kind := range kinds {
		opts := []handlers.Option{handlers.MaxAttempts(1), retrySoon()}
		if more[name] != nil {
			opts = append(opts, more[name])
		}
		relaytest.Register(reg, kind, name, each,
			func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					begun.Add(1)
					if name == "LEASED" {
						leased.Add(1)
					}
					if tx != nil {
						if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
							return err
						}
					}
				}
				<-open
				if name == "EXTENDED" {
					return tasks[0].Extend(ctx, time.Minute)
				}
				return nil
			}, opts...)
		db.Enqueue(t, name, each)
	}
	r := run(t, db, reg, relay.Config{Workers: 14, Observers: told.observers()})
	// Of a group the second task begins after the first.
	eventually(t, time.Minute, "all handlers run", func() bool { return int(begun.Load()) >= each*len(kinds)-1 })

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
		done := 0
		for _, outcomes := range told.outcomes() {
			done += strings.Count(outcomes, "done")
		}
		return canceled >= 16 || done == each*len(kinds)
	})
	if err := errors.Join(<-locked, locker.Rollback()); err != nil {
		t.Fatal(err)
	}
	db.Emptied(t, time.Minute)
	r.Stop()
	for name, outcomes := range told.outcomes() {
		if left := strings.NewReplacer("infrastructure", "", "released", "", "done", "", " ",
			"").Replace(outcomes); left != "" {
			t.Errorf("%s ended as %s", name, outcomes)
		}
	}
	if n := leased.Load(); n != each {
		t.Errorf("%d runs of %d Leased tasks: a result was to be written again", n, each)
	}
	db.wantRows(t, 0, "outbox.dead_task")
	db.wantRows(t, each*(len(kinds)-2), "effect WHERE attempt = 1") // plain Leased handlers leave none
	db.Do(t, `TRUNCATE effect, outbox.done_task`)
	db.wantRows(t, 0, "outbox.running")
}
