//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/chaos/app"
)

func enqueuePoison(a *arena, r *rand.Rand) (string, error) {
	how := app.Poisons[r.IntN(len(app.Poisons))]
	return how, enqueue(a, app.TypePoison, how)
}

func enqueueMisbehaving(a *arena, r *rand.Rand) (string, error) {
	if r.IntN(10) == 0 {
		how := app.Commits[r.IntN(len(app.Commits))]
		return how, enqueue(a, app.TypeCommits, how)
	}
	how := app.Misbehaviors[r.IntN(len(app.Misbehaviors))]
	return how, enqueue(a, app.TypeMisbehaves, how)
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

// operate does what a person at a dashboard does. An error is another fault's.
func operate(a *arena, r *rand.Rand) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := admin.New(a.db, admin.Options{})
	if err != nil {
		return "", err
	}
	what := "cancel"
	switch r.IntN(3) {
	case 0:
		err = cancelSome(ctx, a)
	case 1:
		what = "redrive"
		_, _, err = client.EveryPage(ctx, client.Redrive, admin.Filter{Type: app.TypeMisbehaves.Name()}, 1000)
	default:
		kind := []string{"TX", "BATCH", "LEASED", "ORDERED"}[r.IntN(4)]
		what = "pause " + kind
		err = client.PauseType(ctx, kind)
		a.lasts(time.Duration(500+r.IntN(1500))*time.Millisecond, func() { resume(a, client, kind) })
	}
	if err != nil {
		return "", nil
	}
	return what, nil
}

func cancelSome(ctx context.Context, a *arena) error {
	return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
		var ids []int64
		var ks []string
		row := tx.QueryRowContext(ctx, `SELECT array_agg(task_id), array_agg(payload ->> 'k') FROM (
			SELECT task_id, payload FROM outbox.task WHERE task_type = 'CANCELABLE' LIMIT 50) t`)
		if err := row.Scan(pq.Array(&ids), pq.Array(&ks)); err != nil {
			return err
		}
		for i, id := range ids {
			result, err := outbox.Cancel(ctx, tx, id)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO canceled VALUES ($1, $2)`, ks[i], result.String()); err != nil {
				return err
			}
		}
		return nil
	})
}

func resume(a *arena, client *admin.Client, kind string) {
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := client.ResumeType(ctx, kind)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	a.complain("the type %s could not be resumed", kind)
}
