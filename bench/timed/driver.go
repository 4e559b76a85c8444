// Package timed is lib/pq with a clock on the relay's own claims: from sending the statement to its
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

// claims matches the statements that are timed, by the comment that they begin with.
var claims = regexp.MustCompile(`/\* outbox: (claim|lease)`)

func init() { sql.Register(Name, clocked{}) }

// Took is one claim.
type Took struct {
	At  time.Time // its end
	For time.Duration
}

var (
	mu   sync.Mutex
	took []Took
)

// Take returns the claims of all connections of the process since the last call.
func Take() []Took {
	mu.Lock()
	defer mu.Unlock()
	all := took
	took = nil
	return all
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

// QueryContext is how a relay sends its claims, which it never prepares.
func (c conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	began := time.Now()
	r, err := c.full.QueryContext(ctx, query, args)
	if f, ok := r.(fullRows); ok && err == nil && claims.MatchString(query) {
		return rows{f, began}, nil
	}
	return r, err
}

// fullRows is what rows of lib/pq can do, as far as anybody asks.
type fullRows interface {
	driver.Rows
	driver.RowsNextResultSet
}

type rows struct {
	fullRows
	began time.Time
}

// Close ends a statement: database/sql calls it once, after the last row.
func (r rows) Close() error {
	err := r.fullRows.Close()
	now := time.Now()
	mu.Lock()
	defer mu.Unlock()
	took = append(took, Took{At: now, For: now.Sub(r.began)})
	return err
}
