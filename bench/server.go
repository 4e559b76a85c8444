package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	neturl "net/url"
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

// shownSettings are printed as the server says them.
var shownSettings = []string{
	"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
	"checkpoint_timeout", "max_connections", "autovacuum", "autovacuum_naptime", "wal_level", "jit",
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

// settings are shownSettings as they are.
func (s *server) settings(ctx context.Context) ([][2]string, error) {
	var out [][2]string
	for _, name := range shownSettings {
		var value string
		if err := s.admin.QueryRowContext(ctx, `SELECT current_setting($1)`, name).Scan(&value); err != nil {
			return nil, err
		}
		out = append(out, [2]string{name, value})
	}
	return out, nil
}

// fresh is a copy of the side's database, which is built when it is asked for the first time.
func (s *server) fresh(ctx context.Context, of side) (*database, error) {
	d, err := open(s.devpg.PreparedDatabase(ctx, of.key, func(url string) error {
		d, err := open(url, nil, nil)
		if err != nil {
			return err
		}
		if err = of.build(ctx, d); err == nil {
			err = d.exec(ctx, `VACUUM ANALYZE`)
		}
		return errors.Join(err, d.Close())
	}))
	if err != nil {
		return nil, fmt.Errorf("bench: a database of %s: %w", of.key, err)
	}
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
	url, name string
	remove    func()
}

// open takes the results of devpg.
func open(url string, remove func(), err error) (*database, error) {
	if err != nil {
		return nil, err
	}
	u, err := neturl.Parse(url)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("postgres", url)
	return &database{DB: db, url: url, name: u.Path[1:], remove: remove}, err
}

func (d *database) drop() {
	_ = d.Close()
	d.remove()
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
