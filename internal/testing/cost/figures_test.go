package cost_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/schema"
)

// figures are what one task costs, or the bounds of that, by column.
type figures [10]float64

const (
	polls      = iota // statements that ask which types have work; they are in none of the other columns but allocations
	calls             // of the driver
	trips             // between client and server
	statements        // that the client sent
	inner             // that functions and triggers executed
	rows              // that the client's statements returned or changed
	buffers           // that they found in shared buffers or read, what triggers and functions did included
	wal               // bytes
	allocs
	allocated // bytes
)

var names = []string{"polls", "calls", "trips", "statements", "inner", "rows", "buffers", "wal", "allocs", "bytes"}

// cost measures work, which is for the given number of tasks. Columns that cannot be measured here
// are NaN.
func (s *server) cost(t *testing.T, db *subject, tasks int, work func()) figures {
	t.Helper()
	s.do(t, `CHECKPOINT`)
	if s.statements {
		s.do(t, `SELECT pg_stat_statements_reset()`)
	}
	before := s.totals(t, db)
	work()
	after := s.totals(t, db)
	if n := s.int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND state <> 'idle'`, db.name); n != 0 {
		t.Fatalf("%d connections are still at work", n)
	}
	if s.statements && s.int(t, `SELECT dealloc FROM pg_stat_statements_info`) != 0 {
		t.Fatal("pg_stat_statements has thrown entries away: raise pg_stat_statements.max, or measure fewer tasks")
	}
	per := figures{}
	for i := range names {
		per[i] = (after[i] - before[i]) / float64(tasks)
	}
	return per
}

const statementsSQL = `
SELECT coalesce(sum(calls) FILTER (WHERE toplevel
AND NOT poll), 0), coalesce(sum(calls) FILTER (WHERE NOT toplevel), 0),
       coalesce(sum(rows) FILTER (WHERE toplevel AND NOT poll), 0),
       coalesce(sum(shared_blks_hit + shared_blks_read) FILTER (WHERE toplevel AND NOT poll), 0),
       coalesce(sum(wal_bytes) FILTER (WHERE poll), 0)
  FROM (SELECT s.*, s.query ~ '/\* outbox: (poll|find )|outbox\.poll\(' AS poll -- PostgreSQL 18 drops a comment before
  -- a statement
          FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1) s`

// totals are what has been used up to now.
func (s *server) totals(t *testing.T, db *subject) (f figures) {
	t.Helper()
	for _, i := range []int{statements, inner, rows, buffers, allocs, allocated} {
		f[i] = math.NaN()
	}
	if err := s.admin.QueryRowContext(t.Context(),
		`SELECT pg_current_wal_insert_lsn() - '0/0'`).Scan(&f[wal]); err != nil {
		t.Fatal(err)
	}
	if s.statements {
		var ofPolls float64
		row := s.admin.QueryRowContext(t.Context(), statementsSQL, db.name)
		if err := row.Scan(&f[statements], &f[inner], &f[rows], &f[buffers], &ofPolls); err != nil {
			t.Fatal(err)
		}
		f[wal] -= ofPolls
	}
	f[polls], f[calls], f[trips] = float64(db.counter.polls.Load()), float64(db.counter.calls.Load()), float64(db.counter.trips.Load())
	if !relaytest.RaceDetector { // it allocates as well
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		f[allocs], f[allocated] = float64(m.Mallocs), float64(m.TotalAlloc)
	}
	return f
}

// over says in which columns f is beyond its bounds.
func (f figures) over(bound figures) (out []string) {
	for i, name := range names {
		if got, most := f[i], bound[i]; got > most { // NaN is not
			out = append(out, fmt.Sprintf("%s: %s a task, want at most %s", name, number(got), number(most)))
		}
	}
	return out
}

// header is the first line of a table.
func header() string {
	return fmt.Sprintf("%-13s", "case") + strings.Join(padded(names), "") + "\n"
}

// line is f as a line of a table.
func (f figures) line(name string) string {
	cells := make([]string, len(names))
	for i := range names {
		cells[i] = number(f[i])
	}
	return fmt.Sprintf("%-13s", name) + strings.Join(padded(cells), "") + "\n"
}

func padded(cells []string) (out []string) {
	for _, c := range cells {
		out = append(out, fmt.Sprintf("%11s", c))
	}
	return out
}

// literal is f as a line of the map of bounds.
func (f figures) literal(name string) string {
	cells := make([]string, len(names))
	for i := range names {
		cells[i] = number(f[i])
	}
	return fmt.Sprintf("%q: {%s},\n", name, strings.Join(cells, ", "))
}

const (
	ofPolls = 20   // they come with the time that the tasks take
	ofRest  = 1.15 // versions of PostgreSQL and of Go differ a little
)

// bounds are a little above the figures: by the given factor where each statement counts.
func (f figures) bounds(spare float64) (b figures) {
	for i, name := range names {
		by := spare
		switch name {
		case "rows":
			by = exact
		case "polls":
			by = ofPolls
		case "buffers", "wal", "allocs", "bytes":
			by = ofRest
		}
		b[i] = roundUp(f[i] * by)
	}
	return b
}

// roundUp keeps three digits.
func roundUp(f float64) float64 {
	if f == 0 || math.IsNaN(f) {
		return f
	}
	unit := math.Pow(10, math.Floor(math.Log10(f))-2)
	return math.Ceil(f/unit-1e-9) * unit
}

// number writes small figures with three digits and large ones without a fraction.
func number(f float64) string {
	switch {
	case math.IsNaN(f):
		return "-"
	case f == 0:
		return "0"
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.3g", f)
}

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

// counter is a connector of lib/pq that counts what its connections send once they are open. Polls
// come by the clock, some for each second that the tasks take; they are counted, and left out of
// the others.
type counter struct {
	*pq.Connector
	calls atomic.Int64 // queries, and statements that are prepared
	trips atomic.Int64 // how often a connection went from writing to reading
	polls atomic.Int64
}

// pollText matches the statements of a poll on the wire.
var pollText = regexp.MustCompile(`/\* outbox: (poll|find )`)

func newCounter(url string) (*counter, error) {
	connector, err := pq.NewConnector(url)
	if err != nil {
		return nil, err
	}
	c := &counter{Connector: connector}
	connector.Dialer(dialer{c})
	return c, nil
}

type dialer struct{ c *counter }

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var plain net.Dialer
	conn, err := plain.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, counter: d.c}, nil
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// wire is a socket that counts.
type wire struct {
	net.Conn
	counter *counter
	counts  atomic.Bool // the handshake is over, and no poll under way
	wrote   atomic.Bool
}

// Write sees whole messages. The handshake has none of these two.
func (w *wire) Write(p []byte) (int, error) {
	if kind := p[0]; kind == 'Q' || kind == 'P' {
		poll := pollText.Match(p[:min(len(p), 100)])
		if poll {
			w.counter.polls.Add(1)
		} else {
			w.counter.calls.Add(1)
		}
		w.counts.Store(!poll)
	}
	w.wrote.Store(true)
	return w.Conn.Write(p)
}

func (w *wire) Read(p []byte) (int, error) {
	if w.wrote.Swap(false) && w.counts.Load() {
		w.counter.trips.Add(1)
	}
	return w.Conn.Read(p)
}
