//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

func enqueuePoison(a *arena, r *rand.Rand) (string, error) {
	how := app.Poisons[r.IntN(len(app.Poisons))]
	return how, enqueue(a, app.TypePoison, how)
}

// enqueue adds a task. It is tried for 20 s, as the server may be starting. Each try is a task of
// its own, as the one before may have committed.
func enqueue(a *arena, kind outbox.TaskType[app.Payload], how string) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if err := tryToEnqueue(a, kind, how); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// tryToEnqueue writes a ledger, as producers do. After an error the outcome is unknown.
func tryToEnqueue(a *arena, kind outbox.TaskType[app.Payload], how string) error {
	const producer = "faults"
	n := a.count("tasks of faults", 1)
	k := fmt.Sprintf("fault-%d", n)
	if err := app.Intend(a.dir, producer, n, kind.Name()+":"+k); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO business (k) VALUES ($1)`, k); err != nil {
			return err
		}
		_, err := kind.Enqueue(ctx, tx, app.Payload{K: k, How: how})
		return err
	})
	if err != nil {
		return err
	}
	return app.End(a.dir, producer, n, app.Acked)
}
