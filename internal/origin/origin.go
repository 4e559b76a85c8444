// Package origin tells the database that the tasks belong to from its copies. In a copy no task may
// run until an operator has adopted the copy.
package origin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/pg"
)

// ErrCopy is relay.ErrCopy.
var ErrCopy = errors.New("relay: this database is a copy")

// MaxEnvironment is the longest name of an environment, in bytes.
const MaxEnvironment = 128

// ValidEnvironment reports whether a relay may have that environment. "" is none.
func ValidEnvironment(name string) bool {
	return len(name) <= MaxEnvironment && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// Querier is a transaction, a connection or a pool.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// State is the note about the database that the tasks belong to.
type State struct {
	DatabaseID  string
	Name        string // of the database
	Environment string // "": none
	Hidden      bool   // the system identifier is
	Own         bool   // it is this database
	Refused     bool   // to relays of the environment that was asked about
	LivedAt     time.Time
}

// LivedAt is of the latest heartbeat, which a copy has of its original. What lies ahead was written
// while the server's clock was.
const (
	lookSQL = `/* outbox: look which database this is */
` + columns + `outbox.origin_state($1)` + first
	noteSQL = `/* outbox: note which database this is */
` + columns + `outbox.note_origin($1)` + first

	columns = `SELECT s.database_id::text, s.database_name, COALESCE(s.environment, ''), s.own, s.refused,
       GREATEST(s.noted_at, (SELECT max(alive_until) - interval '10 seconds' FROM outbox.relay
                              WHERE alive_until < clock_timestamp() + interval '5 minutes')), s.hidden
  FROM `
	first = ` s ORDER BY s.own, s.refused DESC, s.noted_at LIMIT 1`
)

// Look returns the note about another database, if there is one, else that about this one. It is
// zero without a note.
func Look(ctx context.Context, q Querier, in pg.Schema, environment string) (State, error) {
	return read(ctx, q, in.SQL(lookSQL), environment)
}

func read(ctx context.Context, q Querier, query, environment string) (s State, err error) {
	err = q.QueryRowContext(ctx, query, environment).
		Scan(&s.DatabaseID, &s.Name, &s.Environment, &s.Own, &s.Refused, &s.LivedAt, &s.Hidden)
	if errors.Is(err, sql.ErrNoRows) {
		return State{}, nil
	}
	return s, err
}

// Note first notes this database, unless it is a copy or the role may not write the table. It notes
// the environment, unless it is "" or another one is noted. Then it is Check.
func Note(ctx context.Context, q Querier, in pg.Schema, environment string) (State, error) {
	s, err := read(ctx, q, in.SQL(noteSQL), environment)
	if err == nil {
		err = s.Err(environment)
	}
	return s, err
}

// Check is Look, with an ErrCopy where relays of that environment are refused.
func Check(ctx context.Context, q Querier, in pg.Schema, environment string) (State, error) {
	s, err := Look(ctx, q, in, environment)
	if err == nil {
		err = s.Err(environment)
	}
	return s, err
}

const toDo = "outbox adopt takes it over, outbox adopt -discard empties it"

// Err is an ErrCopy that says what to do, or nil where relays are not refused.
func (s State) Err(environment string) error {
	switch {
	case !s.Refused:
		return nil
	case !s.Own:
		return fmt.Errorf("%w of %q, made after %s: %s", ErrCopy, s.Name, s.LivedAt.UTC().Format(time.RFC3339), toDo)
	case environment != "" && s.Environment != environment:
		return fmt.Errorf("%w, or the wrong one: its environment is %q, and Config.Environment is %q: "+
			"outbox adopt -environment %[3]s takes it over, with -discard it empties it", ErrCopy, s.Environment, environment)
	}
	return fmt.Errorf("%w: rows of another database were loaded into it: %s", ErrCopy, toDo)
}
