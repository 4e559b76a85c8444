//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/chaos/app"
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
