package crashes_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// payload says what a task does.
type payload struct {
	Ms    int  // of work
	Kill  bool // it ends its process then
	Again int  // iterations after the first
}

// kinds are the kinds of relaytest.Register, by the type of their tasks. The effect of a PLAIN task
// is written on the side, as an effect outside of the database is.
var kinds = map[string]string{"TX": "tx", "BATCH": "batch", "LEASED": "complete", "PLAIN": "leased"}

// tables are what handlers write. Relay processes stop at named points while the test holds the
// point's lock.
const tables = `
CREATE TABLE done (task_id bigint, iteration int, attempt int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE start (task_id bigint, task_type text, attempt int, at timestamptz);
CREATE TABLE inside (task_type text, task_id bigint, pid int);
CREATE TABLE crowd (task_type text, n int);
CREATE TABLE dead (pid int);
CREATE FUNCTION stop_at(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('application_name') LIKE 'relay-%' THEN
    PERFORM pg_advisory_lock_shared(hashtext(name)), pg_advisory_unlock_shared(hashtext(name));
  END IF;
END $$;
CREATE FUNCTION at_point() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM public.stop_at(TG_ARGV[0]); RETURN NULL; END $$;`

// newDatabase has a server whose tests may open many connections.
func newDatabase(t *testing.T, server *devpg.Server) *relaytest.Database {
	t.Helper()
	url, drop, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	db := relaytest.Adopt(t, url)
	db.Do(t, tables)
	return db
}

// enqueue inserts n tasks of a type.
func enqueue(t *testing.T, db *relaytest.Database, taskType string, n int, p string) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts, payload) SELECT $1, 1000, $3::jsonb
		FROM generate_series(1, $2)`, taskType, n, p)
}

// worker has the handlers of a relay process. side is a pool apart from the relay's, for what a
// handler tells the test whatever becomes of its transaction.
type worker struct{ side *sql.DB }

// registry has handlers of each kind: without limits, at most three at once in all relays, and a
// hundred a second.
func registry(side *sql.DB) *handlers.Registry {
	w, reg := worker{side}, handlers.New()
	for name, kind := range kinds {
		relaytest.Register(reg, kind, name, 20, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			again := handlers.BatchResult{}
			for _, task := range tasks {
				if err := w.effect(ctx, tx, task); err != nil {
					return err
				}
				if task.Iterations < task.Payload.Again {
					again[task.ID] = handlers.RunAgain(time.Millisecond)
				}
			}
			switch {
			case len(again) == 0:
				return nil
			case kind != "batch":
				return again[tasks[0].ID]
			}
			return again
		})
		relaytest.Register(reg, kind, "LIMITED_"+name, 5, w.limited, handlers.MaxRunning(limit))
		relaytest.Register(reg, kind, "RATED_"+name, 20, w.rated, handlers.Rate(perSecond, time.Second))
	}
	return reg
}

// effect does what the payload says.
func (w worker) effect(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
	if tx != nil {
		if _, err := tx.ExecContext(ctx, `SELECT stop_at('handler begun')`); err != nil {
			return err
		}
	}
	work := time.Duration(task.Payload.Ms) * time.Millisecond
	if task.Payload.Kill {
		// On a machine that stands still a start is written late, and not left out.
		_, err := w.side.ExecContext(context.WithoutCancel(ctx), noteStart, task.ID, task.Type, task.Attempt, time.Now())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		pause(ctx, work/2)
		os.Exit(3)
	}
	pause(ctx, work)
	if tx == nil {
		_, err := w.side.ExecContext(ctx, noteDone, task.ID, task.Iterations, -1)
		return err
	}
	if _, err := tx.ExecContext(ctx, noteDone, task.ID, task.Iterations, attemptOf(task)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `SELECT stop_at('effect written')`)
	return err
}

const (
	noteStart = `INSERT INTO start (task_id, task_type, attempt, at) VALUES ($1, $2, $3, $4)`
	noteDone  = `INSERT INTO done (task_id, iteration, attempt) VALUES ($1, $2, $3)`
)

// attemptOf is the attempt without those that ended by a timeout, as on a machine that stands still.
func attemptOf(task *outbox.Task[payload]) int {
	n := task.Attempt
	for _, e := range task.FailedAttempts {
		if e.Error != "lost" {
			n--
		}
	}
	return n
}

// pause is work apart from the database.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
