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
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
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
			got = append(got, fmt.Sprint(d.ID, d.Key, d.Type, d.Attempt, d.MaxAttempts, d.Reason, d.LastError))
		}
		letters, err := relaytest.Admin(t, db.DB).DeadLetters(t.Context(), admin.DeadQuery{Limit: 1000})
		must(err)
		for _, d := range letters.Tasks {
			want = append(want, fmt.Sprint(d.ID, d.Key, d.Type, d.Attempt, d.MaxAttempts, d.Reason, d.LastError))
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
	handlers.Batch(reg, typeBatch, 500, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
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
