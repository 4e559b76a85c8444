package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// told keeps what OnDead was told.
type told struct {
	mu      sync.Mutex
	letters []relay.DeadLetter
}

func (w *told) onDead(_ context.Context, d relay.DeadLetter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.letters = append(w.letters, d)
}

func (w *told) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.letters)
}

func TestOnDeadIsCalledOnceForEachDeadLetter(t *testing.T) {
	boom := errors.New("boom")
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		kinds[kind](reg, "FAILS", func(*outbox.Task[payload]) error { return boom }, handlers.MaxAttempts(1))
		kinds[kind](reg, "DIES", func(*outbox.Task[payload]) error { return handlers.Dead(boom) })
		kinds[kind](reg, "WORKS", func(*outbox.Task[payload]) error { return nil })
		for _, name := range []string{"FAILS", "DIES", "WORKS"} {
			db.Enqueue(t, name, 20)
		}
		dead := 40
		if kind == "tx" {
			registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
				_, err := tx.ExecContext(ctx, "COMMIT")
				return errors.Join(boom, err)
			})
			db.Enqueue(t, "TX", 1)
			dead++
		}
		w := &told{}
		once(t, db, reg, relay.Config{OnDead: w.onDead}) // waits for the calls
		var got, want []string
		for _, d := range w.letters {
			got = append(got, fmt.Sprintf("%d %s %s %d/%d %s %s", d.TaskID, d.Key, d.Type, d.Attempt, d.MaxAttempts, d.Reason,
				d.Error))
		}
		letters, _, err := relaytest.Admin(t, db.DB).DeadLetters(t.Context(), admin.Filter{}, admin.Page{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range letters {
			want = append(want, fmt.Sprintf("%d %s %s %d/%d %s %s", d.TaskID, d.Key, d.Type, d.Attempt, d.MaxAttempts, d.Reason,
				d.LastError))
		}
		slices.Sort(got)
		slices.Sort(want)
		if len(want) != dead || !slices.Equal(got, want) {
			t.Errorf("it was told of\n%s\nthere are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestOnDeadNeitherStopsNorSlowsTheRelay(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 500, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error {
		return handlers.Dead(errors.New("boom"))
	})
	const dead = 1500
	db.Enqueue(t, "BATCH", dead)
	w := &told{}
	release := make(chan struct{})
	first := true
	r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond,
		OnDead: func(ctx context.Context, d relay.DeadLetter) {
			w.onDead(ctx, d)
			if first {
				first = false
				<-release // and all of the following wait
				panic("oops")
			}
		}})
	db.becomes(t, 30*time.Second, dead, "all dead letters", `SELECT count(*) FROM outbox.dead_task`)
	eventually(t, 30*time.Second, "all were told", func() bool {
		return r.Log.Count("a task became a dead letter") == dead
	})
	r.Log.Want(t, 1, "OnDead is slower")
	if n := w.count(); n != 1 {
		t.Errorf("%d calls, want 1 that does not return", n)
	}
	close(release)
	eventually(t, 30*time.Second, "the calls that waited", func() bool { return w.count() >= 1001 })
	r.Stop()
	if n := w.count(); n > 1002 || r.Log.Count("panic: oops") != 1 ||
		r.Log.Count("OnDead was not called for some dead letters") != 1 {
		t.Errorf("%d calls, want 1,001; log:\n%s", n, r.Log.Tail())
	}
}

func TestDeadLettersAreKeptForAsLongAsTheConfigSays(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	const old = 2500
	db.Enqueue(t, "X", old+10)
	db.Do(t, `WITH gone AS (DELETE FROM outbox.task RETURNING task_id, payload)
		INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason,
		task_type, payload)
		SELECT task_id, now(), now(), now() - CASE WHEN (payload->>'n')::int <= $1 THEN interval '61 minutes' ELSE interval
		'59 minutes' END, 0, 1, 1, 'attempts', 'X', '{}'
		  FROM gone`, old)
	db.Do(t, `CREATE TABLE deleted (n int);
		CREATE FUNCTION deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO deleted SELECT count(*)
		FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER deleted AFTER DELETE ON outbox.dead_task REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
		EXECUTE FUNCTION deleted()`)
	forever := run(t, db, all(), relay.Config{})
	db.Enqueue(t, "TX", 100)
	db.Emptied(t, 20*time.Second)
	forever.Stop()
	db.want(t, old+10, "dead letters with no retention", `SELECT count(*) FROM outbox.dead_task`)
	run(t, db, all(), relay.Config{DeadRetention: time.Hour})
	run(t, db, all(), relay.Config{DeadRetention: time.Hour})
	db.becomes(t, 30*time.Second, 0, "the old ones are gone", `SELECT count(*) FROM outbox.dead_task
		WHERE died_at < now() - interval '1 hour'`)
	db.want(t, 10, "dead letters are left", `SELECT count(*) FROM outbox.dead_task`)
	if n := db.Int(t, `SELECT max(n) FROM deleted`); n > 1000 {
		t.Errorf("a statement deleted %d rows, want 1000 at most", n)
	}
}
