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
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Eight ways to end the transaction of the claim, each before nil and before an error. What a
// handler commits itself stands: its task is done, or, when it failed after that, a dead letter
// that says so. Nothing that comes later in another transaction is committed.
func TestAHandlerThatEndsTheTransactionOfItsClaimLosesNoTask(t *testing.T) {
	testMisbehaving(t, endings)
}

const lateSQL = `INSERT INTO late VALUES ('late')`

func endings() (out []misbehavingHandler) {
	// text is that of the dead letter after nil
	both := func(name string, ends misdeed, afterNil, afterError fate, text string) {
		txOnly := strings.HasPrefix(name, "tx.")
		out = append(out, misbehavingHandler{name: name + "_nil", act: ends, fate: afterNil, text: text, txOnly: txOnly},
			misbehavingHandler{name: name + "_error", act: fails(errMisdeed, ends), fate: afterError, text: "misdeed",
				txOnly: txOnly})
	}
	commits := func(name string, ends misdeed) { both(name, ends, done, committed, "") }
	rollsBack := func(name string, ends misdeed) {
		both(name, ends, exhausted, exhausted, "rolled the transaction of its claim back")
	}
	commits("COMMIT", execs(`COMMIT`))
	commits("COMMIT_BEGIN", execs(`COMMIT`, `BEGIN`, lateSQL))
	commits("COMMIT_BEGIN_at_once", execs(`COMMIT; BEGIN; `+lateSQL))
	commits("COMMIT_BEGIN_SAVEPOINT", execs(`COMMIT; BEGIN; SAVEPOINT mine; `+lateSQL))
	commits("COMMIT_AND_CHAIN", execs(`COMMIT AND CHAIN`, lateSQL))
	commits("COMMIT_BEGIN_SAVEPOINT_of_the_relay", withSavepoint(`COMMIT; BEGIN; SAVEPOINT %s; `+lateSQL))
	commits("tx.Commit", func(_ context.Context, _ *misbehavingRelay, tx outbox.Tx) error { return tx.(*sql.Tx).Commit() })
	rollsBack("ROLLBACK", execs(`ROLLBACK`))
	rollsBack("ROLLBACK_BEGIN", execs(`ROLLBACK; BEGIN; `+lateSQL))
	rollsBack("ROLLBACK_AND_CHAIN", execs(`ROLLBACK AND CHAIN`, lateSQL))
	rollsBack("RELEASE_of_the_relay", withSavepoint(`RELEASE SAVEPOINT %s`))
	rollsBack("tx.Rollback", func(_ context.Context, _ *misbehavingRelay, tx outbox.Tx) error {
		return tx.(*sql.Tx).Rollback()
	})

	both("ROLLBACK_TO", execs(`SAVEPOINT mine`, lateSQL, `ROLLBACK TO SAVEPOINT mine`), done, exhausted, "")
	both("RELEASE", execs(`SAVEPOINT mine`, `RELEASE SAVEPOINT mine`), done, exhausted, "")
	const failed = "a statement of its transaction had failed"
	both("ROLLBACK_TO_nothing", hides(lateSQL, `ROLLBACK TO SAVEPOINT nothing`), exhausted, exhausted, failed)
	both("RELEASE_nothing", hides(lateSQL, `RELEASE SAVEPOINT nothing`), exhausted, exhausted, failed)
	return append(out, misbehavingHandler{name: "tx.Commit_panic", fate: committed, txOnly: true, text: "panic: misdeed",
		act: func(_ context.Context, _ *misbehavingRelay, tx outbox.Tx) error {
			_ = tx.(*sql.Tx).Commit()
			panic(errMisdeed)
		}})
}

// withSavepoint does statements with the name of the relay's own savepoint, which the misbehaving
// handlers read from pg_stat_activity before their first statement.
func withSavepoint(statements string) misdeed {
	return func(ctx context.Context, _ *misbehavingRelay, tx outbox.Tx) error {
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		name := ctx.Value(savepoints{}).(map[int]string)[pid]
		if name == "" {
			return errors.New("the relay's savepoint was not found")
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf(statements, name))
		return err
	}
}

type savepoints struct{}

// findSavepoints is a context with the names of the relay's savepoints, by the process of their
// backend.
func (m *misbehavingRelay) findSavepoints(ctx context.Context) (context.Context, error) {
	rows, err := m.db.QueryContext(ctx, `SELECT pid, substring(query FROM 'ob_[0-9a-z]+') FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE '%SAVEPOINT ob!_%' ESCAPE '!'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[int]string{}
	for rows.Next() {
		var pid int
		var name string
		if err := rows.Scan(&pid, &name); err != nil {
			return nil, err
		}
		found[pid] = name
	}
	return context.WithValue(ctx, savepoints{}, found), rows.Err()
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
		leak := func(tx *sql.Tx, id int64) {
			leaked.Go(func() {
				for {
					if _, err := tx.ExecContext(context.Background(), `INSERT INTO leaked VALUES ($1)`, id); errors.Is(err,
						sql.ErrTxDone) {
						return
					}
				}
			})
		}
		reg := handlers.New()
		registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			err := txEffect(ctx, tx, task)
			leak(tx, task.ID)
			return err
		}, handlers.MaxAttempts(1))
		registerTx(reg, outbox.NewTaskType[payload]("FAILS"),
			func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
				err := txEffect(ctx, tx, task)
				leak(tx, -task.ID)
				return errors.Join(err, errMisdeed)
			}, handlers.MaxAttempts(attempts), retrySoon())
		db.Enqueue(t, "TX", tasks)
		db.Enqueue(t, "FAILS", tasks)
		run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 60*time.Second)
		leaked.Wait()
		if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect`); n != tasks ||
			db.Int(t, `SELECT count(*) FROM effect`) != tasks {
			t.Errorf("effects of %d tasks, want one of each of the %d that succeeded", n, tasks)
		}
		db.want(t, 0, "writes of goroutines are committed whose handlers had failed",
			`SELECT count(*) FROM leaked WHERE task_id < 0`)
		db.want(t, tasks, "dead letters are as they should be", `SELECT count(*) FROM outbox.dead_task
			WHERE task_type = 'FAILS' AND attempt = $1 AND reason = 'attempts' AND last_error LIKE '%misdeed%'`, attempts)
	})
}

// createRole makes a role that may only insert into a table; takeRoleSQL takes it until the end of
// the transaction.
func createRole(t testing.TB, db *database, table string) {
	t.Helper()
	name := `role_of_` + db.Text(t, `SELECT current_database()`)
	db.Do(t, `CREATE ROLE `+name)
	t.Cleanup(func() {
		db.Do(t, `DROP OWNED BY `+name)
		db.Do(t, `DROP ROLE `+name)
	})
	db.Do(t, `GRANT INSERT ON `+table+` TO `+name)
}

const takeRoleSQL = `SELECT set_config('role', 'role_of_' || current_database(), true)`
