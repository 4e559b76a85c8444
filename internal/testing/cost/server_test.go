package cost_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/schema"
)

// settings keep out of the figures what depends on the time: images of pages after a checkpoint,
// vacuum.
var settings = map[string]string{
	"full_page_writes":   "off",
	"checkpoint_timeout": "1d",
	"max_wal_size":       "16GB",
	"autovacuum":         "off",
	"shared_buffers":     "256MB",
	"jit":                "off",

	"pg_stat_statements.track": "all", // of what functions and triggers execute, too
}

// server is a PostgreSQL of this test's own, and what is asked of it from outside of the database
// that is measured.
type server struct {
	*devpg.Server
	admin      *sql.DB
	statements bool // pg_stat_statements is there
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{Server: pgtest.Local(t, settings)}
	s.connect(t)
	s.statements = s.int(t, `SELECT count(*) FROM pg_available_extensions
		WHERE name = 'pg_stat_statements' AND string_to_array(default_version, '.')::int[] >= '{1,9}'`) == 1
	if s.statements {
		s.do(t, `ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'`)
		if err := s.Stop("fast"); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.connect(t)
		s.do(t, `CREATE EXTENSION pg_stat_statements`)
	} else { // the driver counts calls and round trips; statements, inner statements, rows and buffers are not checked
		needs.Without(t, "pg_stat_statements 1.9 or later", "postgresql-contrib")
	}
	return s
}

func (s *server) connect(t *testing.T) {
	t.Helper()
	db, err := sql.Open("postgres", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s.admin = db
}

// noMaintenance puts off what relays do now and then, as it would be in one run and not in the
// next.
func noMaintenance() string {
	statement := `INSERT INTO outbox.maintenance (job, due_at) VALUES `
	for i, j := range upkeep.SharedJobs(0) {
		if i > 0 {
			statement += ", "
		}
		statement += `('` + j.Name + `', now() + interval '1 day')`
	}
	return statement
}

// migrated is a database as each case begins with.
func migrated(url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(context.Background(), db); err != nil {
		return err
	}
	_, err = db.Exec(`CREATE TABLE effect (task_id bigint NOT NULL); ` + noMaintenance())
	return err
}

func (s *server) do(t *testing.T, query string) {
	t.Helper()
	if _, err := s.admin.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (s *server) int(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	if err := s.admin.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// subject is a migrated database of one case, and a pool whose connections are counted.
type subject struct {
	*sql.DB
	counter *counter
	name    string
}

func (s *server) subject(t *testing.T) *subject {
	t.Helper()
	url, drop, err := s.PreparedDatabase(t.Context(), "migrated", migrated)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	c, err := newCounter(url)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c.Connector)
	db.SetMaxIdleConns(maxConns)
	t.Cleanup(func() { db.Close() })
	sub := &subject{DB: db, counter: c}
	if err := db.QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&sub.name); err != nil {
		t.Fatal(err)
	}
	return sub
}

// maxConns is more than what any case opens at once.
const maxConns = 150
