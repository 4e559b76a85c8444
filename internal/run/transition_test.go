package run

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func migrate(url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	return schema.Migrate(context.Background(), db)
}

// startRunner returns a runner on a database of the test's own.
func startRunner(t *testing.T) (*Runner, *sql.DB) {
	t.Helper()
	db, err := sql.Open("postgres", pgtest.Prepared(t, migrate))
	if err != nil {
		t.Fatal(err)
	}
	pool := pg.NewPool(db)
	t.Cleanup(func() { pool.Close(); db.Close() })
	r := NewRunner(store.Store{Schema: "outbox", RelayID: store.NewUUID(), Conns: pool, Identity: &store.Identity{}}, Params{Log: slog.New(slog.DiscardHandler), Events: deaf{},
		NewPace: func() pg.Pace { return pg.NewPace(&pg.Broadcast{}, func() {}) }, Claiming: t.Context(), Handling: t.Context()})
	return r, db
}

// I4: of a task that its relay has lost and claimed again, two runs may end in one group. The token
// decides.
func TestOfTwoRunsOfATaskInOneGroupTheHolderEndsIt(t *testing.T) {
	t.Parallel()
	const held, stale = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-00000000000a"
	for name, tokens := range map[string][]string{"first": {held, stale}, "last": {stale, held}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := startRunner(t)
			if _, err := db.Exec(`INSERT INTO outbox.task (task_type, payload) SELECT 'LEASED', '{}' FROM generate_series(1, 3);
				UPDATE outbox.task SET state = 'leased', relay_id = '` + held + `', lease_token = '` + held + `'`); err != nil {
				t.Fatal(err)
			}
			var group []*transition
			for i, id := range []int64{3, 3, 2} {
				group = append(group, &transition{row: &store.Row{ID: id}, token: append(tokens, stale)[i], verdict: verdict{done: true}})
			}
			if err := NewLeases(r).write(group, false); err != nil {
				t.Fatal(err)
			}
			if group[0].held != (tokens[0] == held) || group[1].held != (tokens[1] == held) || group[2].held {
				t.Errorf("held: %v, %v, %v", group[0].held, group[1].held, group[2].held)
			}
			left := 0
			if err := db.QueryRow(`SELECT count(*) FROM outbox.task WHERE state = 'leased'`).Scan(&left); err != nil || left != 2 {
				t.Errorf("%d tasks are left, want 2 (%v)", left, err)
			}
		})
	}
}

// Of a relay that does not wait for results any more, none waits for those before it.
func TestAnAbandonedResultDoesNotWaitForAWriteSlot(t *testing.T) {
	t.Parallel()
	r, _ := startRunner(t)
	r.Abandon()
	l := NewLeases(r)
	told := make(chan struct{})
	l.Ended = func([]*LeasedRun) { close(told) }
	for range singleWrites {
		l.writeSlots <- struct{}{}
	}
	x := &LeasedRun{lease: lease{r: r}}
	go l.writeGroup([]*LeasedRun{x}, l.writeSlots)
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
}

// deaf hears of nothing.
type deaf struct{ Events }

func (deaf) Observed() bool { return false }
