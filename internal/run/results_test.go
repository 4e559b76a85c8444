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
	x := &LeasedRun{lease: lease{r: r, row: &store.Row{}}}
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
