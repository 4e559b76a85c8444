package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// The record is written while the handler runs, and only one that sends no statement is to be
// Leased.
func TestTheLogSaysWhyATransactionStaysOpen(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE account (n int); INSERT INTO account VALUES (0); CREATE TABLE ledger ()`)
	holder, err := db.BeginTx(t.Context(), nil)
	must(err)
	var pid int
	must(holder.QueryRowContext(t.Context(), `UPDATE account SET n = 1 RETURNING pg_backend_pid()`).Scan(&pid))
	_, err = holder.ExecContext(t.Context(), `LOCK TABLE ledger`)
	must(err)
	var returned atomic.Int32
	done := make(chan struct{})
	reg := handlers.New()
	of := func(name string, f func(ctx context.Context, tx *sql.Tx) error, opts ...handlers.Option) {
		registerTx(reg, outbox.NewTaskType[any](name), func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[any]) error {
			defer returned.Add(1)
			return f(ctx, tx)
		}, opts...)
		db.Enqueue(t, name, 1)
	}
	sends := func(statement string) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = 0`); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, statement)
			return err
		}
	}
	of("LOCK", sends(`UPDATE account SET n = n + 1`))
	locks, calls := sends(`LOCK TABLE ledger`), 0
	of("LOCKS", func(ctx context.Context, tx *sql.Tx) error {
		if calls++; calls == 1 { // the first group has one task
			return nil
		}
		return locks(ctx, tx)
	}, handlers.GroupCommit(10, time.Second), handlers.MaxRunning(1))
	db.Enqueue(t, "LOCKS", 2)
	of("IDLE", func(context.Context, *sql.Tx) error { <-done; return nil })
	of("STATEMENT", sends(`SELECT pg_sleep(60)`))
	r := run(t, db, reg, relay.Config{Workers: 4})
	const slow = "a handler keeps a transaction open for long"
	eventually(t, time.Minute, "four are logged", func() bool { return r.Log.Count(slow) >= 4 })
	if n := returned.Load(); n > 1 {
		t.Errorf("%d handlers had returned", n)
	}
	must(holder.Rollback())
	close(done)
	lines := map[string]string{}
	for line := range strings.Lines(r.Log.String()) {
		if _, of, found := strings.Cut(line, "task_type="); found && strings.Contains(line, slow) {
			name, _, _ := strings.Cut(of, " ")
			lines[name] = line
		}
	}
	for name, wants := range map[string][]string{
		"LOCK":      {"waits for a lock", fmt.Sprintf("blocked_by_pid=%d", pid), `waits_for="Lock `},
		"LOCKS":     {"waits for a lock", fmt.Sprintf("blocked_by_pid=%d", pid), `waits_for="Lock relation"`},
		"IDLE":      {"register it as Leased", `state="idle in transaction"`},
		"STATEMENT": {"its statement is slow", `waits_for="Timeout PgSleep"`},
	} {
		for _, want := range wants {
			if !strings.Contains(lines[name], want) {
				t.Errorf("%s: the record does not say %s: %s", name, want, lines[name])
			}
		}
		if strings.Contains(lines[name], "Leased") != (name == "IDLE") {
			t.Errorf("%s: wrong advice: %s", name, lines[name])
		}
	}
	db.Do(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep(60)%'`)
}
