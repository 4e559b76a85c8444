// Package deadletter looks after dead letters: tasks that no relay will run again by itself. It lists, counts and
// shows them, gives them back to the relays (redrive), and deletes them (purge).
//
//	page, err := deadletter.List(ctx, db, deadletter.Filter{Type: "SEND_MAIL"}, deadletter.Cursor{}, 50)
//	ids, err := deadletter.Redrive(ctx, tx, []int64{page[0].TaskID})
//	n, err := deadletter.RedriveMany(ctx, db, deadletter.Filter{Error: "%connection refused%"}, 100)
//
// What names no *sql.DB works on whatever an app has: a *sql.Tx, *sql.Conn, *sql.DB or *sqlx.Tx, of lib/pq or pgx. All of it
// is safe for concurrent use, beside relays at work as well.
package deadletter

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Reason is why a task is a dead letter.
type Reason string

// The reasons.
const (
	Attempts        Reason = "attempts"         // all were used
	Handler         Reason = "handler"          // it returned handlers.Dead, or its backoff said stop
	LostConnections Reason = "lost_connections" // ten runs lost their connection to PostgreSQL
	Committed       Reason = "committed"        // the handler committed the claim's transaction and then failed
)

// Errors of this package; those of Redrive and the like that come from PostgreSQL are wrapped as they are.
var (
	// ErrNotFound is returned by Get for a task that is no dead letter.
	ErrNotFound = errors.New("deadletter: not found")
	// ErrInvalid is returned before any SQL is sent: a filter, a limit, a rate or an option is out of range. The error names it.
	ErrInvalid = errors.New("deadletter: invalid argument")
)

// Letter is one dead letter. Its task was started Attempt times, the last time at AttemptedAt, and failed with Error.
type Letter struct {
	TaskID      int64
	Type        string
	Reason      Reason
	Error       string // at most 4 kB
	Attempt     int
	MaxAttempts int // that held: the task's own or its handler's
	Priority    int
	CreatedAt   time.Time
	RunAt       time.Time
	AttemptedAt time.Time // zero: never
	DiedAt      time.Time

	// Payload and Headers are as PostgreSQL keeps them: JSON, nil where there are no headers. Only Get reads them.
	Payload json.RawMessage
	Headers json.RawMessage
}

// Cursor is the letter's place, from which the next page goes on.
func (l Letter) Cursor() Cursor { return Cursor{l.DiedAt, l.TaskID} }

// Cursor is a place in the order of deaths. The zero Cursor is the beginning: for what lists and counts the latest dead letter, for RedrivePage and PurgePage the oldest.
type Cursor struct {
	DiedAt time.Time
	TaskID int64
}

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

// maxRows is the most that one page lists, and one statement moves or deletes.
const maxRows = 1000

const columns = `task_id, task_type, reason, COALESCE(last_error, ''), attempt, max_attempts, priority, created_at, run_at, attempted_at, died_at`

// scan reads the columns, and what follows them.
func (l *Letter) scan(row interface{ Scan(...any) error }, more ...any) error {
	var attempted sql.NullTime
	err := row.Scan(append([]any{&l.TaskID, &l.Type, &l.Reason, &l.Error, &l.Attempt, &l.MaxAttempts, &l.Priority, &l.CreatedAt, &l.RunAt, &attempted, &l.DiedAt}, more...)...)
	l.AttemptedAt = attempted.Time
	return err
}

const getSQL = `/* outbox: get a dead letter */
SELECT ` + columns + `, payload::text, COALESCE(headers::text, '') FROM outbox.dead_task WHERE task_id = $1`

// Get returns the dead letter of a task, with its payload. The error is ErrNotFound if there is none.
func Get(ctx context.Context, q outbox.Querier, taskID int64, opts ...Option) (Letter, error) {
	s, err := newSettings(opts)
	if err != nil {
		return Letter{}, err
	}
	var l Letter
	var payload, headers string
	err = l.scan(q.QueryRowContext(ctx, s.sql(getSQL), taskID), &payload, &headers)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Letter{}, fmt.Errorf("%w: task %d", ErrNotFound, taskID)
	case err != nil:
		return Letter{}, fmt.Errorf("deadletter: get task %d: %w", taskID, pgerr.WithoutDSN(err))
	}
	l.Payload = json.RawMessage(payload)
	if headers != "" {
		l.Headers = json.RawMessage(headers)
	}
	return l, nil
}
