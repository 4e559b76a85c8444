package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/internal/testing/devpg"
)

// serverSettings are durable as those of a database in use, with room for one on a small machine,
// and no checkpoint in the middle of a turn.
var serverSettings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min", "max_connections": "1200",
	"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top", "autovacuum_naptime": "5s",
}

// server is the PostgreSQL under test. A database is built once, and copied for each turn. So all
// turns of a side start from the same files, vacuumed, analyzed, after a checkpoint.
type server struct {
	devpg *devpg.Server
	admin *sql.DB
}

func openServer(ctx context.Context, logf func(string, ...any)) (*server, error) {
	own, err := devpg.Open(ctx, logf, devpg.WithLocal(), devpg.WithSettings(serverSettings))
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("postgres", own.URL())
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return &server{own, admin}, nil
}

func (s *server) close() error { return errors.Join(s.admin.Close(), s.devpg.Close()) }

// with calls do with a fresh database of the side's, and a client that enqueues in it.
func (s *server) with(ctx context.Context, of side, do func(d *database, c client) error) error {
	d, err := s.fresh(ctx, of)
	if err != nil {
		return err
	}
	defer d.drop()
	c, err := of.open(ctx, d)
	if err != nil {
		return err
	}
	return do(d, c)
}

// fresh is a copy of the side's database, which is built when it is asked for the first time.
func (s *server) fresh(ctx context.Context, of side) (*database, error) {
	url, remove, err := s.devpg.PreparedDatabase(ctx, of.key, func(url string) error {
		db, err := sql.Open("postgres", url)
		if err != nil {
			return err
		}
		d := &database{DB: db, url: url}
		if err = of.build(ctx, d); err == nil {
			err = d.exec(ctx, `VACUUM ANALYZE`)
		}
		return errors.Join(err, d.Close())
	})
	if err != nil {
		return nil, fmt.Errorf("bench: a database of %s: %w", of.key, err)
	}
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	d := &database{DB: db, url: url}
	d.onDrop(remove)
	return d, d.exec(ctx, adoptSQL)
}

// adoptSQL: relays run nothing in a copy of the template's tasks until it is adopted.
const adoptSQL = `DO $$ BEGIN
  IF to_regproc('outbox.adopt') IS NOT NULL THEN
    PERFORM outbox.adopt(false, false, NULL);
  END IF;
END $$`

// database is one database of the server.
type database struct {
	*sql.DB
	url   string
	drops []func()
}

// onDrop has drop call f, before what it was given earlier.
func (d *database) onDrop(f func()) { d.drops = append(d.drops, f) }

func (d *database) drop() {
	_ = d.Close()
	for i := range d.drops {
		d.drops[len(d.drops)-1-i]()
	}
}

// exec runs statements that have no parameters.
func (d *database) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := d.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("bench: %.60s: %w", strings.TrimSpace(s), err)
		}
	}
	return nil
}
