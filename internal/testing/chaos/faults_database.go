//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

// standbyAway has commits wait for a synchronous standby that is away, for longer than leases live
// without a heartbeat.
func standbyAway(a *arena, r *rand.Rand) (string, error) {
	if a.attaching() {
		return "", nil
	}
	d := 14*time.Second + time.Duration(r.IntN(4000))*time.Millisecond
	if err := a.commitsWaitFor("away"); err != nil {
		return "", err
	}
	back := ""
	if a.failovers {
		back = "*"
	}
	time.Sleep(d) // and no other fault meanwhile: a failover would lose what no standby has
	return d.String(), a.commitsWaitFor(back)
}

// lockTable locks one of the outbox's tables against all others, as VACUUM FULL does.
func lockTable(a *arena, r *rand.Rand) (string, error) {
	var tables []string
	err := a.row(pq.Array(&tables), `SELECT array_agg(relname ORDER BY relname) FROM pg_class
		WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relname <> 'migration'`)
	if err != nil {
		return "", nil
	}
	table, d := tables[r.IntN(len(tables))], time.Duration(3000+r.IntN(12000))*time.Millisecond
	if r.IntN(3) == 0 { // for longer than the statements that end a claim may take
		table, d = "running", 12*time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	late := time.AfterFunc(10*time.Second, cancel)
	tx, err := a.db.BeginTx(ctx, nil)
	if err == nil {
		_, err = tx.ExecContext(ctx, `LOCK TABLE outbox.`+pq.QuoteIdentifier(table)+` IN ACCESS EXCLUSIVE MODE`)
	}
	if err != nil || !late.Stop() {
		cancel()
		return "", nil
	}
	a.lasts(d, cancel)
	return fmt.Sprint(table, " for ", d), nil
}

// changeTasks changes waiting tasks in bulk, as an operator does. Delayed tasks keep their times, which
// are checked.
func changeTasks(a *arena, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := admin.New(a.db, admin.Config{Actor: "chaos", Tool: "chaos"})
	if err != nil {
		return "", err
	}
	retrying := admin.Filter{State: admin.StateRetrying}
	var done admin.BulkResult
	what := ""
	switch r.IntN(3) {
	case 0:
		what = "run now"
		done, err = c.RunNow(ctx, retrying, admin.Bulk{})
	case 1:
		after := time.Duration(r.IntN(3000)) * time.Millisecond
		what = "reschedule by " + after.String()
		done, err = c.Reschedule(ctx, retrying, time.Now().Add(after), admin.Bulk{})
	default:
		what = "set the priority"
		done, err = c.SetPriority(ctx, admin.Filter{All: true}, r.IntN(5)-2, admin.Bulk{})
	}
	if err != nil || len(done.IDs) == 0 {
		return "", nil // another fault's
	}
	return fmt.Sprintf("%s of %d tasks", what, len(done.IDs)), nil
}

// damageTask enqueues a task whose payload cannot be read: the TOAST row that has it is killed, as by
// a damaged disk.
func damageTask(a *arena, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	kind := app.Damaged[r.IntN(len(app.Damaged))]
	large := make([]byte, 16<<10)
	for i := range large {
		large[i] = byte('a' + r.IntN(26))
	}
	err := outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
		e, err := kind.Enqueue(ctx, tx, app.Payload{K: "damaged", How: string(large)}, outbox.Priority(-1))
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO damaged VALUES ($1)`, e.ID); err != nil {
			return err
		}
		var toast, places string
		row := tx.QueryRowContext(ctx, `SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'outbox.task'::regclass`)
		if err := row.Scan(&toast); err != nil {
			return err
		}
		row = tx.QueryRowContext(ctx, `SELECT array_agg(ctid)::text FROM `+toast+` WHERE xmin = pg_current_xact_id()::xid`)
		if err := row.Scan(&places); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `SELECT heap_force_kill($1::regclass, $2::tid[])`, toast, places)
		return err
	})
	if err != nil {
		return "", nil // another fault's
	}
	return kind.Name(), nil
}

// leasedSQL is the rows of tasks that living relays run. Tasks with keys are left out, as another
// may have the key when they are done.
const leasedSQL = `SELECT COALESCE(json_agg(t), '[]') FROM outbox.task t
	WHERE state = 'leased' AND ordering_key IS NULL AND unique_key IS NULL`

// restoreSQL puts the rows back of tasks that are done since, with their counts and without their
// effects. The row of a relay is older than its latest heartbeat then.
const restoreSQL = `WITH lost AS MATERIALIZED (
	SELECT * FROM json_populate_recordset(NULL::outbox.task, $1) t
	 WHERE NOT EXISTS (SELECT FROM outbox.task o WHERE o.task_id = t.task_id)
	   AND EXISTS (SELECT FROM outbox.relay l
	                WHERE l.relay_id = t.relay_id AND alive_until > clock_timestamp())),
tasks AS (INSERT INTO outbox.task OVERRIDING SYSTEM VALUE SELECT * FROM lost),
counts AS (INSERT INTO outbox.counter_log (tasks, task_type, kind)
	SELECT count(*), task_type, state FROM lost GROUP BY task_type, state),
effects AS (DELETE FROM effect WHERE task_id IN (SELECT task_id FROM lost)),
relays AS (UPDATE outbox.relay SET alive_until = alive_until - interval '1 ms'
	WHERE relay_id IN (SELECT relay_id FROM lost))
SELECT count(*) FROM lost`

// restoreLeases takes results of Leased tasks back beside the relays that have them: the rows say
// that these relays run the tasks still, for minutes. So it is after a failover to an asynchronous
// standby, which would lose commits of producers as well, and after a restore in place.
func restoreLeases(a *arena, _ *rand.Rand) (string, error) {
	rows, n := "", 0
	if a.row(&rows, leasedSQL) != nil {
		return "", nil // another fault's
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for began := time.Now(); n == 0 && time.Since(began) < 3*time.Second; {
		wait(ctx, 100*time.Millisecond)
		err := outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SET LOCAL session_replication_role = replica;
				SET LOCAL lock_timeout = '5s'`)
			if err != nil {
				return err
			}
			return tx.QueryRowContext(ctx, restoreSQL, rows).Scan(&n)
		})
		if err != nil {
			return "", err
		}
	}
	if n == 0 {
		return "", nil
	}
	return fmt.Sprint(n, " tasks"), nil
}

// forgeWakeUps sends notifications of any text to the relays, as each role of the database may.
func forgeWakeUps(a *arena, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1000+r.IntN(3000))*time.Millisecond)
	defer cancel()
	conn, err := a.db.Conn(ctx)
	if err != nil {
		return "", nil
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `SET ROLE stranger`); err != nil {
		return "", nil
	}
	n, words := 0, []string{
		"99999 1 TX", "-99999 1 TX", "0 0 TX", "0 -1 TX", "0 9223372036854775807 TX", "0 9223372036854775808 TX",
		"0 1 BATCH", "32767 1 LEASED", "0 1 NOBODY", "0 1 ", "TX", "0 TX", " ", "0 1 TX 2", strings.Repeat("9", 7000),
	}
	for ; ctx.Err() == nil; n++ {
		if _, err := conn.ExecContext(ctx, `SELECT pg_notify('outbox', $1)`, words[r.IntN(len(words))]); err != nil {
			break
		}
		wait(ctx, 15*time.Millisecond)
	}
	return fmt.Sprint(n, " of them"), nil
}

// rewrite is a way to write the rows of a table into a new file. Each but VACUUM FULL and CLUSTER
// makes new versions of the rows.
type rewrite struct {
	name string
	do   func(ctx context.Context, a *arena, table string) error
}

var rewrites = []rewrite{
	{"VACUUM FULL", rewriteBy(`VACUUM FULL outbox.%[1]s`)},
	{"CLUSTER", rewriteBy(`CLUSTER outbox.%[1]s USING %[1]s_pkey`)},
	{"SET UNLOGGED and back", rewriteBy( // in one transaction, as a crash empties an unlogged table
		`ALTER TABLE outbox.%[1]s SET UNLOGGED; ALTER TABLE outbox.%[1]s SET LOGGED`)},
	{"a column", rewriteBy(`ALTER TABLE outbox.%[1]s ADD COLUMN chaos uuid DEFAULT gen_random_uuid();
		ALTER TABLE outbox.%[1]s DROP COLUMN chaos`)},
	{"pg_repack", repack},
}

// rewriteBy rewrites a table by statements of the superuser.
func rewriteBy(statements string) func(ctx context.Context, a *arena, table string) error {
	return func(ctx context.Context, a *arena, table string) error {
		conn, err := a.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, `SET lock_timeout = '5s'`); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, fmt.Sprintf(statements, table))
		return err
	}
}

func repack(ctx context.Context, a *arena, table string) error {
	u := a.superuser()
	secret, _ := u.User.Password()
	cmd := exec.CommandContext(ctx, a.repack,
		"--no-order", "--no-kill-backend", "--wait-timeout=5", "--table=outbox."+table)
	cmd.Env = append(os.Environ(), "PGHOST="+u.Hostname(), "PGPORT="+u.Port(),
		"PGUSER="+u.User.Username(), "PGPASSWORD="+secret, "PGDATABASE="+a.database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// dropRepack removes pg_repack, with what a crash has left of its triggers and logs.
const dropRepack = `DROP EXTENSION IF EXISTS pg_repack CASCADE`

// rewriteTables rewrites all tables of the outbox beside relays, one after the other, each in some
// way: origin first, as relays ask it which database this is. It leaves out a table whose lock is
// not to be had, and one whose way needs a primary key.
func rewriteTables(a *arena, r *rand.Rand) (string, error) {
	var tables []string
	err := a.row(pq.Array(&tables), `SELECT array_agg(relname ORDER BY relname <> 'origin', relname)
		FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'`)
	if err != nil || !a.rewriting.CompareAndSwap(false, true) {
		return "", nil
	}
	others := tables[1:]
	r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	a.aside("rewrite", func() (string, error) {
		defer a.rewriting.Store(false)
		return rewriteEach(a, r, tables)
	})
	return "", nil
}

func rewriteEach(a *arena, r *rand.Rand, tables []string) (what string, err error) {
	ways := rewrites
	if a.repack == "" {
		ways = ways[:len(ways)-1]
	} else if err := a.do(dropRepack + `; CREATE EXTENSION pg_repack`); err != nil {
		return "", err
	}
	done := 0
	for _, table := range tables {
		if a.over.Load() {
			break
		}
		if err := a.do(`SELECT 1`); err != nil { // it waits until the server has started
			return "", err
		}
		way := ways[r.IntN(len(ways))]
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		failure := way.do(ctx, a, table)
		cancel()
		if failure == nil {
			done++
			what += fmt.Sprintf(" %s (%s)", table, way.name)
		} else {
			err = failure
		}
	}
	if a.repack != "" {
		if err := a.do(dropRepack); err != nil {
			return "", err
		}
	}
	if done == 0 {
		return "", err
	}
	return fmt.Sprintf("%d of %d tables:%s", done, len(tables), what), nil
}
