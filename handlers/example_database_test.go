package handlers_test

import (
	"context"
	"database/sql"
	"log/slog"

	_ "github.com/lib/pq" // the driver "postgres"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// exampleDatabase is a migrated database for an example.
func exampleDatabase() (db *sql.DB, drop func()) {
	url, dropDatabase := pgtest.ExampleDatabase()
	db, err := pgtest.Open("postgres", url)
	must(err)
	must(schema.Migrate(context.Background(), db))
	return db, func() {
		_ = db.Close()
		dropDatabase()
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// runDue runs what is due, one task after the other; an app calls Run.
func runDue(ctx context.Context, db *sql.DB, reg *handlers.Registry) {
	r, err := relay.New(db, reg, relay.Config{Workers: 1, Logger: slog.New(slog.DiscardHandler)})
	must(err)
	must(r.RunOnce(ctx))
}
