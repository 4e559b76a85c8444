package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/devpg"
)

// serverSettings are those of the server that the benchmark starts: durable as a database in use is, with room for one on a
// small machine, and no checkpoint in the middle of a turn.
var serverSettings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min", "max_connections": "1200",
	"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top", "autovacuum_naptime": "5s",
}

// shownSettings are printed as the server says them.
var shownSettings = []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "checkpoint_timeout",
	"max_connections", "autovacuum", "autovacuum_naptime", "wal_level", "jit"}

// server is the PostgreSQL under test. Databases are built once, as templates, and copied for each turn, so that all turns of a
// side start from the same files, vacuumed, analyzed and right after a checkpoint.
type server struct {
	url     string
	admin   *sql.DB
	release func() error
	prefix  string
	version int

	mu        sync.Mutex
	templates map[string]string // key: database
	count     int
}

func openServer(ctx context.Context, url string, logf func(string, ...any)) (*server, error) {
	s := &server{url: url, release: func() error { return nil }, templates: map[string]string{}}
	if url == "" {
		own, err := devpg.Open(ctx, logf, devpg.WithLocal(), devpg.WithSettings(serverSettings))
		if err != nil {
			return nil, err
		}
		s.url, s.release = own.URL(), own.Close
	}
	var err error
	if s.admin, err = sql.Open("postgres", s.url); err != nil {
		return nil, errors.Join(errors.New("bench: the URL is not one of lib/pq"), s.release())
	}
	var letters [4]byte
	_, _ = rand.Read(letters[:])
	s.prefix = fmt.Sprintf("outbox_bench_%x", letters)
	if err := s.admin.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&s.version); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: connect: %w", err), s.release())
	}
	return s, nil
}

func (s *server) close() error {
	for _, name := range s.templates {
		s.drop(name)
	}
	return errors.Join(s.admin.Close(), s.release())
}

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

func (s *server) urlOf(database string) string {
	u, err := neturl.Parse(s.url)
	if err != nil {
		panic(err) // it was used already
	}
	u.Path, u.RawPath = "/"+database, ""
	return u.String()
}

func (s *server) name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return fmt.Sprintf("%s_%d", s.prefix, s.count)
}

// empty makes a database with nothing in it.
func (s *server) empty(ctx context.Context) (*database, error) {
	name := s.name()
	if _, err := s.admin.ExecContext(ctx, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'`); err != nil {
		return nil, fmt.Errorf("bench: create a database: %w", err)
	}
	return s.open(name)
}

// fresh is a copy of the template, which build fills when it is asked for the first time.
func (s *server) fresh(ctx context.Context, key string, build func(context.Context, *database) error) (*database, error) {
	template, ok := s.templates[key]
	if !ok {
		d, err := s.empty(ctx)
		if err != nil {
			return nil, err
		}
		if err := d.build(ctx, build); err != nil {
			d.drop()
			return nil, fmt.Errorf("bench: build %s: %w", key, err)
		}
		template = d.name
		s.templates[key] = template
	}
	name := s.name()
	strategy := ""
	if s.version >= 150000 {
		strategy = " STRATEGY FILE_COPY" // it ends with a checkpoint, as older versions do in any case
	}
	if _, err := s.admin.ExecContext(ctx, `CREATE DATABASE `+name+` TEMPLATE `+template+strategy); err != nil {
		return nil, fmt.Errorf("bench: copy a database: %w", err)
	}
	return s.open(name)
}

// forget drops a template, for the disk's sake.
func (s *server) forget(key string) {
	if name, ok := s.templates[key]; ok {
		s.drop(name)
		delete(s.templates, key)
	}
}

func (s *server) open(name string) (*database, error) {
	url := s.urlOf(name)
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	return &database{DB: db, server: s, name: name, url: url}, nil
}

func (s *server) drop(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = s.admin.ExecContext(ctx, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`)
}

// database is one database of the server.
type database struct {
	*sql.DB
	server    *server
	name, url string
}

// build fills a template and closes it to everybody, autovacuum included.
func (d *database) build(ctx context.Context, fill func(context.Context, *database) error) error {
	if err := fill(ctx, d); err != nil {
		return err
	}
	if _, err := d.ExecContext(ctx, `VACUUM ANALYZE`); err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	_, err := d.server.admin.ExecContext(ctx, `ALTER DATABASE `+pq.QuoteIdentifier(d.name)+` ALLOW_CONNECTIONS false`)
	return err
}

func (d *database) drop() {
	_ = d.Close()
	d.server.drop(d.name)
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
