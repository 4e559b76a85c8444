// Package inspect reads what is in the outbox: tasks wherever they are, relays with what they run, types, schedules, and how the counts went.
// It is what an operator's tools are made of; it changes nothing.
//
// Every call reads one page or one row by an index, at the same cost with ten tasks and with ten million. All of it is safe for concurrent
// use, beside relays at work, and on a standby. What names no *sql.DB works on whatever an app has: a *sql.Tx, *sql.Conn, *sql.DB or *sqlx.Tx, of lib/pq
// or pgx. A call may send two statements, each of which sees what is committed by then, unless they are in a transaction above READ COMMITTED.
//
// All but [GetSecrets] needs no more rights than the viewer of docs/security.md has, and reads no payload, header or key.
package inspect

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
)

var (
	// ErrNotFound is returned for a task that is nowhere: it is finished and its type keeps none, was canceled, is not committed yet, or never was.
	ErrNotFound = errors.New("inspect: not found")
	// ErrInvalid is returned before any SQL is sent. The error names what is out of range.
	ErrInvalid = errors.New("inspect: invalid argument")
)

// Option changes one call.
type Option func(*settings)

type settings struct{ schema string }

// Schema names the PostgreSQL schema of the outbox if it is not "outbox".
func Schema(name string) Option { return func(s *settings) { s.schema = name } }

func newSettings(opts []Option) (settings, error) {
	s := settings{outbox.DefaultSchema}
	for _, o := range opts {
		if o == nil {
			return s, fmt.Errorf("%w: an Option is nil", ErrInvalid)
		}
		o(&s)
	}
	if !outbox.ValidSchema(s.schema) {
		return s, fmt.Errorf("%w: Schema(%q): use a lower-case name like outbox, letters, digits and _ only, at most 63 bytes", ErrInvalid, s.schema)
	}
	return s, nil
}

// sql puts the schema's name into a statement, which is written for the schema "outbox".
func (s settings) sql(query string) string {
	return strings.ReplaceAll(query, "outbox.", `"`+s.schema+`".`)
}

// checkType refuses what PostgreSQL would: a task type that is no text.
func checkType(name string) error {
	if !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: task type %q: it must be valid UTF-8 without NUL", ErrInvalid, name)
	}
	return nil
}
