// Package devdb runs an example: it reads the flags, finds or starts PostgreSQL, and ends with
// Ctrl-C or SIGTERM. An app has a connection string in its configuration instead.
package devdb

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

// Variable names the database of an example. The example's tables stay in it.
const Variable = "OUTBOX_DATABASE_URL"

// Main is Start and With, for an example that prints to stdout.
func Main(run func(ctx context.Context, url string, out io.Writer) error) {
	Start(func(ctx context.Context) error {
		return With(ctx, func(url string) error { return run(ctx, url, os.Stdout) })
	})
}

// Start calls run when the flags are read. The context ends with the first signal; a second one
// ends the process at once.
func Start(run func(ctx context.Context) error) {
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("unexpected argument %q", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// With calls run with the connection string in Variable, else with that of a PostgreSQL of the
// example's own, which ends with it.
func With(ctx context.Context, run func(url string) error) error {
	if url := os.Getenv(Variable); url != "" {
		return run(url)
	}
	return withServer(ctx, func(server *devpg.Server) error { return run(server.URL()) })
}

// elsewhere are libpq's variables that count beside the host and database of a URL.
var elsewhere = []string{"PGHOSTADDR", "PGSERVICE", "PGOPTIONS", "PGTARGETSESSIONATTRS"}

// WithOwn calls run with a new database, which is dropped afterwards. The variables that name the
// app's are not read: a demo counts all that is in its database, and the app's relays would take
// some of it.
func WithOwn(ctx context.Context, run func(url string) error) error {
	for _, name := range elsewhere {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return withServer(ctx, func(server *devpg.Server) error {
		url, drop, err := server.NewDatabase(ctx)
		if err != nil {
			return err
		}
		defer drop()
		return run(url)
	})
}

func withServer(ctx context.Context, run func(*devpg.Server) error) (err error) {
	server, err := devpg.Open(ctx, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	return run(server)
}

// Open is what an app does at its start: it opens the pool, and creates what is missing of the
// outbox's tables and of its own.
func Open(ctx context.Context, url, tables string) (*sql.DB, error) {
	db, err := pgdb.Open(url) // or sql.Open("pgx", url)
	if err != nil {
		return nil, err
	}
	err = schema.Migrate(ctx, db) // safe when many start at once
	if err == nil {
		_, err = db.ExecContext(ctx, tables)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Enqueue gives an example something to do. An app enqueues in the transaction of its own rows.
func Enqueue(ctx context.Context, db *sql.DB, tasks ...outbox.TaskSpec) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, tasks)
		return err
	})
}
