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
var ErrCopy = errors.New("relay: this database may be a copy")

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

// ofSQL returns the environment of a relay that is refused at present: it tries each second, and
// that is noted twice a minute.
const ofSQL = `/* outbox: look which environment is refused */
SELECT COALESCE(max(refused_environment), '') FROM outbox.origin
 WHERE environment <> refused_environment AND refused_at > clock_timestamp() - interval '1 minute'`

// LookForTools is Look for the environment of a relay that is refused at present, which it returns
// too. It is "" where no relay is refused for its environment. A copy has relays of none.
func LookForTools(ctx context.Context, q Querier, in pg.Schema) (s State, of string, err error) {
	if s, err = Look(ctx, q, in, ""); err != nil || s.Refused {
		return s, "", err
	}
	if err := q.QueryRowContext(ctx, in.SQL(ofSQL)).Scan(&of); err != nil || of == "" {
		return s, "", err
	}
	s, err = Look(ctx, q, in, of)
	return s, of, err
}

// Note first notes this database, unless it is a copy or the role may not write the table. It notes
// the environment, unless it is "" or another one is noted. Then it is Check. The note is worth a
// commit also if the error is ErrCopy.
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

// Err is an ErrCopy that says what to do, or nil where relays are not refused.
func (s State) Err(environment string) error {
	problem, remedy := s.Problem(environment)
	if problem == "" {
		return nil
	}
	return fmt.Errorf("%w%s: %s", ErrCopy, problem, remedy)
}

// Problem returns why relays of that environment are refused, to follow "this database may be a
// copy", and what to do. No mark tells a move of the original from a copy, so the remedy asks. It
// names nothing that deletes, and first what changes nothing. Both are "" where relays are not
// refused.
func (s State) Problem(environment string) (problem, remedy string) {
	switch {
	case !s.Refused:
		return "", ""
	case !s.Own:
		return fmt.Sprintf(" of %q, made after %s", s.Name, s.LivedAt.UTC().Format(time.RFC3339)), ask
	case environment != "" && s.Environment != environment:
		return fmt.Sprintf(", or the wrong one: its environment is %q, and Config.Environment is %q", s.Environment, environment),
			fmt.Sprintf("is it the relay's database? Then correct Config.Environment. Is it a copy? "+
				"outbox adopt -environment %s takes it over, and relays run its tasks", environment)
	}
	return ": rows of another database were loaded into it", ask
}

const ask = "is it the original, moved or upgraded? outbox adopt -keep-id, once the relays elsewhere are stopped. " +
	"Is it a copy? outbox adopt, and relays run its tasks; outbox adopt -help says more"
