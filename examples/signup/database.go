package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

// database is the pool, with the outbox's tables and the app's in it.
type database struct {
	*sql.DB
	url    string
	server *devpg.Server // nil if it is somebody else's
}

// openDatabase connects to url, or to a PostgreSQL of its own if that is empty, and migrates.
func openDatabase(ctx context.Context, url string) (*database, error) {
	d := &database{url: url}
	if url == "" {
		server, err := devpg.Open(ctx, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
		if err != nil {
			return nil, err
		}
		d.server, d.url = server, server.URL()
	}
	if err := d.connect(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *database) connect(ctx context.Context) (err error) {
	if d.DB, err = openPool(d.url, 25); err != nil {
		return err
	}
	if err := schema.Migrate(ctx, d.DB); err != nil {
		return err
	}
	if _, err := d.ExecContext(ctx, schemaSQL); err != nil {
		return fmt.Errorf("create the app's tables: %w", err)
	}
	return nil
}

// close is to be called when the relay has stopped. It removes a server of our own.
func (d *database) close() error {
	var errs []error
	if d.DB != nil {
		errs = append(errs, d.DB.Close())
	}
	if d.server != nil {
		errs = append(errs, d.server.Close())
	}
	return errors.Join(errs...)
}

// openPool leaves room for a relay's workers, and two connections more, beside the web requests. Idle
// connections are kept: database/sql keeps two by default and would connect again for nearly each task.
func openPool(url string, size int) (*sql.DB, error) {
	db, err := pgdb.Open(url)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}
