package relaytest

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// ExampleDatabase is a migrated database for an example, which calls drop at its end.
func ExampleDatabase() (db *sql.DB, drop func()) {
	db, _, drop = ExampleServer()
	return db, drop
}

// ExampleServer is ExampleDatabase with its connection string.
func ExampleServer() (db *sql.DB, url string, drop func()) {
	url, dropDatabase := pgtest.ExamplePrepared(Migrate)
	db, err := pgtest.Open(DriverName(), url)
	Must(err)
	db.SetMaxIdleConns(20) // a new connection costs more than most examples
	return db, url, func() {
		_ = db.Close()
		dropDatabase()
	}
}

// Must panics on an error.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}

// EnqueueAll enqueues tasks in a transaction of their own.
func EnqueueAll(db *sql.DB, tasks ...outbox.TaskSpec) {
	ctx := context.Background()
	Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, tasks)
		return err
	}))
}

// RunDue runs what is due, one task after the other; an app calls Run.
func RunDue(ctx context.Context, db *sql.DB, reg *handlers.Registry) {
	r, err := relay.New(db, reg, relay.Config{Workers: 1, Logger: slog.New(slog.DiscardHandler)})
	Must(err)
	Must(r.RunOnce(ctx))
}
