package store

import (
	"context"
	"database/sql"
	"os"
	"testing"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
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

// newStore returns a Store on a database of the test's own.
func newStore(t *testing.T) (*Store, *sql.DB) {
	t.Helper()
	db, err := sql.Open("postgres", pgtest.Prepared(t, migrate))
	if err != nil {
		t.Fatal(err)
	}
	pool := pg.NewPool(db)
	t.Cleanup(func() { pool.Close(); db.Close() })
	return &Store{Schema: "outbox", RelayID: NewUUID(), Conns: pool, Identity: &Identity{}}, db
}
