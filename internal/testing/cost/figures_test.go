package cost_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/relaytest"
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
