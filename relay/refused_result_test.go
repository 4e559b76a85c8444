package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// refuse has a statement on a table fail with a SQLSTATE: at once, or at the commit.
func (db *database) refuse(t *testing.T, trigger, table, code string) {
	t.Helper()
	db.Do(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'another server is away' USING
		ERRCODE = '`+code+`'; END $$`)
	db.Do(t, strings.NewReplacer("$trigger", trigger, "$table", table).Replace(`CREATE $trigger ON $table FOR EACH ROW
		EXECUTE FUNCTION refuse()`))
}

// The result of a Leased task is tried again and again. The log and Health say so, though other results
// of the type are recorded.
func TestATypeWithAResultThatIsRefusedIsNamed(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for code, level := range map[string]string{"42501": "level=ERROR", "55P03": "level=WARN"} {
		tests[code] = func(t *testing.T) {
			db := newDatabase(t)
			db.refuse(t, "TRIGGER refuse BEFORE INSERT", "outbox.dead_task", code)
			r := run(t, db, leased(func(_ context.Context, task *outbox.Task[payload]) error {
				if task.Payload.N == 0 {
					return handlers.Dead(errAlways)
				}
				return nil
			}), relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
			db.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ('LEASED', '{"N": 0}')`)
			eventually(t, 30*time.Second, "Health names the type", func() bool {
				return errors.Is(r.Health(), relay.ErrTypeFails)
			})
			db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'LEASED', '{"N": 1}' FROM generate_series(1, 20)`)
			db.becomes(t, 20*time.Second, 1, "the others are done", `SELECT count(*) FROM outbox.task`)
			if err := r.Health(); !errors.Is(err, relay.ErrTypeFails) || !strings.Contains(err.Error(), code) {
				t.Errorf("Health: %v; want it to name the type and %s", err, code)
			}
			r.Log.Want(t, 1, level+` msg="outbox: tasks of this type cannot be claimed or recorded" task_type=LEASED`)
			db.Do(t, `DROP FUNCTION refuse CASCADE`)
			db.Emptied(t, 20*time.Second)
			db.want(t, 1, "dead letters", `SELECT count(*) FROM outbox.dead_task WHERE attempt = 1`)
			eventually(t, 20*time.Second, "it is healthy again", func() bool { return r.Health() == nil })
		}
	}
	relaytest.Together(t, tests)
}

// RunOnce does not wait for ever for a result that is refused.
func TestRunOnceReturnsWhyAResultIsRefused(t *testing.T) {
	t.Parallel()
	needs.CI(t) // it waits for the drain, of 10 s
	db := newDatabase(t)
	db.refuse(t, "TRIGGER refuse BEFORE INSERT", "outbox.dead_task", "42501")
	db.Enqueue(t, "LEASED", 1)
	r, err := relay.New(db.DB, leased(func(context.Context,
		*outbox.Task[payload]) error {
		return handlers.Dead(errAlways)
	}),
		relay.Config{DrainTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.RunOnce(ctx); err == nil || !strings.Contains(err.Error(), "42501") || ctx.Err() != nil {
		t.Errorf("RunOnce: %v, with its context %v; want 42501 before the end of that", err, ctx.Err())
	}
	db.Do(t, `DELETE FROM outbox.task`)
}

// Where the failure of a Tx handler cannot be recorded, the log has it, and why.
func TestAFailureThatCannotBeRecordedIsLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.refuse(t, "TRIGGER refuse BEFORE INSERT", "outbox.dead_task", "57014")
	reg := handlers.New()
	relaytest.Register(reg, "tx", "IT", 1, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		return handlers.Dead(errAlways)
	})
	db.Enqueue(t, "IT", 1)
	r := run(t, db, reg, relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	eventually(t, 20*time.Second, "the log says so", func() bool {
		return r.Log.Count(`cannot be recorded; the task runs again" task_type=IT task_id=1 because="pq: another server is away (57014)" error="it always fails"`) > 0
	})
	db.Do(t, `DROP FUNCTION refuse CASCADE`)
	db.Emptied(t, 30*time.Second)
	db.want(t, 1, "dead letters", `SELECT count(*) FROM outbox.dead_task WHERE last_error = $1`, errAlways.Error())
}

// A trigger that writes to another server may fail with a SQLSTATE that says of a connection that it
// has ended. The claim's own works, so it is the handler's failure.
func TestAConnectionErrorOfAnotherServerIsTheHandlers(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for kind, codes := range map[string][]string{"tx": {"08001", "53300", "57P01", "28P01"}, "batch": {"08001"},
		"group": {"25006"}, "complete": {"08001"}} {
		for _, code := range codes {
			tests[kind+" "+code] = func(t *testing.T) { testAConnectionErrorOfAnotherServer(t, kind, code) }
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "tx 08001", "group 25006", "complete 08001"))
}

func testAConnectionErrorOfAnotherServer(t *testing.T, kind, code string) {
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE app (task_id bigint)`)
	db.refuse(t, "CONSTRAINT TRIGGER refuse AFTER INSERT", "app DEFERRABLE INITIALLY DEFERRED", code)
	opts := []handlers.Option{handlers.MaxAttempts(2), retrySoon()}
	name := kind
	if kind == "group" {
		name, opts = "tx", append(opts, handlers.GroupCommit(4, time.Second))
	}
	reg := handlers.New()
	relaytest.Register(reg, name, "IT", 4, func(ctx context.Context, tx *sql.Tx,
		tasks []*outbox.Task[payload]) error {
		for _, task := range tasks {
			if _, err := tx.ExecContext(ctx, `INSERT INTO app VALUES ($1)`, task.ID); err != nil {
				return err
			}
		}
		return nil
	}, opts...)
	db.Enqueue(t, "IT", 3)
	r := run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 30*time.Second)
	db.want(t, "3 attempts 2 relay: deferred until the commit: pq: another server is away ("+code+")", "dead letters",
		`SELECT concat_ws(' ', count(*), reason, attempt, error)
			FROM (SELECT *, replace(last_error, 'relay: complete task ' || task_id || ': ', 'relay: ') AS error
			FROM outbox.dead_task) AS t GROUP BY reason, attempt, error`)
	r.Log.Want(t, 0, "no connection left")
}
