// Package audit keeps who did what to the outbox by hand: an operator's tools write an entry in the transaction of each action.
//
//	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
//		ids, err := deadletter.Redrive(ctx, tx, []int64{42})
//		if err == nil {
//			_, err = audit.Write(ctx, tx, audit.Entry{Actor: "ada", Tool: "backoffice", Action: "redrive", Target: "task 42", Count: int64(len(ids))})
//		}
//		return err
//	})
//
// Nothing deletes entries. With the roles of docs/security.md workers and operators add some, viewers read them, and nobody but the owner changes them.
package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// ErrInvalid is returned before any SQL is sent. The error names what is out of range.
var ErrInvalid = errors.New("audit: invalid argument")

// Entry is one action. Its texts must be valid UTF-8 without NUL.
type Entry struct {
	EntryID int64     // set by Write and List; ascending, with gaps
	At      time.Time // when its transaction began, by PostgreSQL's clock; set by Write and List
	Actor   string    // who, as the tool knows them: 1 to 256 bytes
	Tool    string    // dashboard, outbox (the command), or another's name: 1 to 64 bytes
	Action  string    // like redrive, purge, cancel, run_now, pause, resume: 1 to 64 bytes
	Target  string    // a task type, a task id, a filter in words; at most 1 kB; never a payload
	Count   int64     // how many tasks it was about; not negative
}

func (e Entry) check() error {
	for _, f := range []struct {
		name, text  string
		least, most int
	}{{"Actor", e.Actor, 1, 256}, {"Tool", e.Tool, 1, 64}, {"Action", e.Action, 1, 64}, {"Target", e.Target, 0, 1024}} {
		if len(f.text) < f.least || len(f.text) > f.most {
			return fmt.Errorf("%w: Entry.%s has %d bytes, must have %d to %d", ErrInvalid, f.name, len(f.text), f.least, f.most)
		}
		if !utf8.ValidString(f.text) || strings.ContainsRune(f.text, 0) {
			return fmt.Errorf("%w: Entry.%s: %q: it must be valid UTF-8 without NUL", ErrInvalid, f.name, f.text)
		}
	}
	if e.Count < 0 {
		return fmt.Errorf("%w: Entry.Count: %d: must not be negative", ErrInvalid, e.Count)
	}
	return nil
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

const writeSQL = `/* outbox: write an audit entry */
INSERT INTO outbox.audit (actor, tool, action, target, count) VALUES ($1, $2, $3, $4, $5) RETURNING entry_id, at`

// Write adds an entry, and returns it with its id and time. tx is the transaction of the action, or a connection on which one is open: a
// nil one, or a pool, is refused with outbox.ErrNoTransaction. The other error before any SQL is ErrInvalid; any other is tx's own, wrapped.
func Write(ctx context.Context, tx outbox.Querier, e Entry, opts ...Option) (Entry, error) {
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return Entry{}, fmt.Errorf("audit: %w: it is nil", outbox.ErrNoTransaction)
	}
	if _, pool := tx.(interface{ SetMaxOpenConns(int) }); pool {
		return Entry{}, fmt.Errorf("audit: %w: a %T is not one: the entry belongs to the transaction of the action", outbox.ErrNoTransaction, tx)
	}
	s, err := newSettings(opts)
	if err != nil {
		return Entry{}, err
	}
	if err := e.check(); err != nil {
		return Entry{}, err
	}
	if err := tx.QueryRowContext(ctx, s.sql(writeSQL), e.Actor, e.Tool, e.Action, e.Target, e.Count).Scan(&e.EntryID, &e.At); err != nil {
		return Entry{}, fmt.Errorf("audit: write: %w", pgerr.WithoutDSN(err))
	}
	return e, nil
}

// Limits of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

const listSQL = `/* outbox: list audit entries */
SELECT entry_id, at, actor, tool, action, target, count FROM outbox.audit WHERE entry_id < $1 ORDER BY entry_id DESC LIMIT $2`

// List returns up to limit entries, the latest first, with ids below before; 0 and less are the beginning, and the last EntryID of a page where the next
// goes on. A limit of 0 means 100; the most is 1,000. An entry is seen once its transaction has committed: the ids of transactions that are open are gaps.
func List(ctx context.Context, q outbox.Querier, before int64, limit int, opts ...Option) ([]Entry, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = defaultPage
	}
	if limit < 0 || limit > maxPage {
		return nil, fmt.Errorf("%w: limit %d: must be between 1 and %d, or 0 for %d", ErrInvalid, limit, maxPage, defaultPage)
	}
	if before <= 0 {
		before = math.MaxInt64
	}
	rows, err := q.QueryContext(ctx, s.sql(listSQL), before, limit)
	if err != nil {
		return nil, fmt.Errorf("audit: list: %w", pgerr.WithoutDSN(err))
	}
	defer rows.Close()
	var out []Entry
	for rows.Next() {
		var e Entry
		if err := rows.Scan(&e.EntryID, &e.At, &e.Actor, &e.Tool, &e.Action, &e.Target, &e.Count); err != nil {
			return nil, fmt.Errorf("audit: list: %w", err)
		}
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("audit: list: %w", pgerr.WithoutDSN(err))
	}
	return out, nil
}
