// Package timed is lib/pq with a clock on the relay's own claims and on its results of leased tasks: from sending the statement to its
// last row.
package timed

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/lib/pq"
)

// Name is the driver's name for database/sql.
const Name = "postgres-timed"

// clocks are the statements that are timed, by the comment that they begin with.
var clocks = map[Kind]*regexp.Regexp{
	Claim:  regexp.MustCompile(`/\* outbox: (claim|lease)`),
	Result: regexp.MustCompile(`/\* outbox: complete`),
}

// Kind is what a statement is for.
type Kind int

// The kinds that are timed.
const (
	Claim  Kind = iota + 1 // takes tasks
	Result                 // ends leased tasks
)

func init() { sql.Register(Name, clocked{}) }

// Took is one statement.
type Took struct {
	Kind Kind
	At   time.Time // its end
	For  time.Duration
}

var (
	mu   sync.Mutex
	took []Took
)

// Take returns the statements of a kind since the last call, which also forgets the others. They are those of all connections of the
// process.
func Take(kind Kind) []Took { return TakeAll()[kind] }

// TakeAll is Take of each kind.
func TakeAll() map[Kind][]Took {
	mu.Lock()
	defer mu.Unlock()
	out := map[Kind][]Took{}
	for _, t := range took {
		out[t.Kind] = append(out[t.Kind], t)
	}
	took = nil
	return out
}

func add(kind Kind, since time.Time) {
	now := time.Now()
	mu.Lock()
	defer mu.Unlock()
	took = append(took, Took{Kind: kind, At: now, For: now.Sub(since)})
}

// full is what a connection of lib/pq can do.
type full interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.QueryerContext
	driver.ExecerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type clocked struct{}

func (clocked) Open(dsn string) (driver.Conn, error) {
	c, err := (&pq.Driver{}).Open(dsn)
	if err != nil {
		return nil, err
	}
	f, ok := c.(full)
	if !ok {
		return nil, errors.Join(errors.New("timed: a connection of lib/pq lacks a method"), c.Close())
	}
	return conn{f}, nil
}

type conn struct{ full }

func (c conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	began := time.Now()
	r, err := c.full.QueryContext(ctx, query, args)
	return clock(r, err, query, began)
}

func (c conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s, err := c.full.PrepareContext(ctx, query)
	if f, ok := s.(fullStmt); ok && err == nil {
		return stmt{f, query}, nil
	}
	return s, err
}

// fullStmt is what a statement of lib/pq can do.
type fullStmt interface {
	driver.Stmt
	driver.StmtQueryContext
	driver.StmtExecContext
}

type stmt struct {
	fullStmt
	query string
}

func (s stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	began := time.Now()
	r, err := s.fullStmt.QueryContext(ctx, args)
	return clock(r, err, s.query, began)
}

// fullRows is what rows of lib/pq can do, as far as anybody asks.
type fullRows interface {
	driver.Rows
	driver.RowsNextResultSet
}

type rows struct {
	fullRows
	kind  Kind
	began time.Time
}

func clock(r driver.Rows, err error, query string, began time.Time) (driver.Rows, error) {
	f, ok := r.(fullRows)
	if !ok || err != nil {
		return r, err
	}
	for kind, statement := range clocks {
		if statement.MatchString(query) {
			return rows{f, kind, began}, nil
		}
	}
	return r, nil
}

// Close ends a statement: database/sql calls it once, after the last row.
func (r rows) Close() error {
	err := r.fullRows.Close()
	add(r.kind, r.began)
	return err
}
