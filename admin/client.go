// Package admin is for operators' tools: it reads an outbox, and has the actions that operators take
// by hand.
//
//	client, err := admin.New(db, admin.Config{Actor: "ada@example.com", Tool: "backoffice"})
//	page, err := client.Tasks(ctx, admin.TaskQuery{Filter: admin.Filter{Type: "SEND_MAIL"}, Limit: 50})
//	done, err := client.Redrive(ctx, admin.Filter{IDs: []int64{42}}, admin.Bulk{})
//	done, err = client.Redrive(ctx, admin.Filter{Error: "connection refused"}, admin.Bulk{PerSecond: 100})
//
// The nouns are tasks in any state, dead letters, types, relays, schedules, samples of the counts,
// and the audit log. The actions are Cancel, RunNow, Reschedule, SetPriority, Retype and SetPayload of
// tasks, Redrive and Purge of dead letters, PurgeFinished of the history, HandBack, Reindex, Repair, and to
// pause, resume or remove.
// One [Filter] says which tasks are meant, in lists, counts and actions. If the Client has an Actor, an
// action writes an entry into the audit log, in its own transaction.
//
// Lists are read by pages: Next of a page is After of the following one. These texts are opaque.
// They are for the list that they come from, may be shown and stored, and have no form that a
// program may read or write: each version may have another one.
//
// [Client.In] makes a client of a transaction: its actions commit with the app's own rows.
//
// Reads use an index, and cost the same with ten tasks and with ten million. Searches by a field of
// [Filter] without an index document their bounds, and [Client.Defects] reads all tasks. Reads work
// beside relays, and on a standby. [Client.Payload] and [Client.Defects] need further rights, as
// does a filter by a key or a payload; all others need those of the viewer of
// https://github.com/txoutbox/outbox/blob/main/docs/security.md, and read no payload, header or
// key. A read may send two statements: in a transaction at READ COMMITTED each sees the rows that
// are committed by then.
package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
)

// ErrNotFound is returned for a task or a schedule that is not in the outbox. Such a task is
// finished and not kept, purged, canceled, removed as expired, uncommitted, or never existed.
var ErrNotFound = errors.New("admin: not found")

// ErrRunning is returned for a task that runs, or that another transaction has locked.
var ErrRunning = errors.New("admin: the task runs")

// Config has the settings of a Client.
type Config struct {
	// Schema is the PostgreSQL schema of the outbox; "" is "outbox".
	Schema string

	// Actor is the name of the user in the audit log: at most 256 bytes. If it is "", actions write
	// no entries.
	Actor string
	// Tool is the name of the program, like backoffice: 1 to 64 bytes. An Actor needs it; without
	// an Actor it is not used.
	Tool string
}

// Client reads and changes one outbox. It is safe for concurrent use if its pool or transaction is.
//
// If an argument is out of range, a call returns outbox.ErrInvalidOption, which names it, before it
// sends any SQL. Other errors are ErrNotFound, outbox.ErrNoTransaction, and the database's, wrapped.
// An action on a pool has transactions of its own, whose commit can fail with
// outbox.ErrCommitUnknown.
type Client struct {
	q      outbox.Querier
	schema pg.Schema
	config Config
}

// New returns a client of the outbox in db, without sending any SQL. The error names all invalid
// arguments. Of a *sqlx.DB pass the field DB.
func New(db *sql.DB, config Config) (*Client, error) {
	if config.Schema == "" {
		config.Schema = schemaname.Default
	}
	var errs []error
	if db == nil {
		errs = append(errs, errors.New("admin: the *sql.DB is nil"))
	}
	if !schemaname.Valid(config.Schema) {
		errs = append(errs, invalid("Config.Schema: %q: %s", config.Schema, schemaname.Rule))
	}
	if config.Actor != "" {
		errs = append(errs, checkLength("Config.Actor", config.Actor, 1, 256), checkLength("Config.Tool", config.Tool, 1, 64))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Client{db, pg.Schema(config.Schema), config}, nil
}

// In returns a client whose calls run on tx and commit with it: a *sql.Tx or *sqlx.Tx, of lib/pq or
// pgx, or a *sql.Conn on which a transaction is open. HandBack, Reindex and Repair need the pool:
// here they return outbox.ErrNoTransaction. So does every call if tx is nil, and every action if tx
// is a pool other than a *sql.DB.
func (c *Client) In(tx outbox.Querier) *Client {
	in := *c
	in.q = tx
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		in.q = nil
	}
	return &in
}

// pool is the *sql.DB, for a call that uses transactions of its own.
func (c *Client) pool(call string) (*sql.DB, error) {
	if db, ok := c.q.(*sql.DB); ok {
		return db, nil
	}
	return nil, fmt.Errorf("admin: %s: %w of its own: call it on the Client that New returned", call,
		outbox.ErrNoTransaction)
}

// inTx runs f on the client's transaction. On a *sql.DB it begins one, as database/sql could retry
// a bare statement.
func (c *Client) inTx(ctx context.Context, f func(q outbox.Querier) error) error {
	if db, ok := c.q.(*sql.DB); ok {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			// At a stricter level it fails when another transaction changes the same rows.
			if _, err := tx.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
				return err
			}
			return f(tx)
		})
	}
	if _, pool := c.q.(interface{ SetMaxOpenConns(int) }); pool || c.q == nil {
		return fmt.Errorf("%w: a %T is not one", outbox.ErrNoTransaction, c.q)
	}
	return f(c.q)
}

// read runs f on the client's pool or transaction.
func (c *Client) read(f func(q outbox.Querier) error) error {
	if c.q == nil {
		return fmt.Errorf("%w: it is nil", outbox.ErrNoTransaction)
	}
	return f(c.q)
}

// rows reads all rows of a query.
func rows[T any](ctx context.Context, q outbox.Querier, query string, args []any, scan func(scanner, *T) error,
) (out []T, err error) {
	found, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() {
		var one T
		if err := scan(found, &one); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, found.Err()
}

// list is rows of the client's pool or transaction, for a call that is named in errors.
func list[T any](ctx context.Context, c *Client, call, query string, args []any, scan func(scanner, *T) error,
) (out []T, err error) {
	err = c.read(func(q outbox.Querier) error {
		out, err = rows(ctx, q, c.schema.SQL(query), args, scan)
		return err
	})
	return out, failed(call, err)
}

// scanner is a *sql.Row or *sql.Rows.
type scanner interface{ Scan(...any) error }

// failed wraps an error of the database, in which a driver may repeat its connection string.
func failed(call string, err error) error {
	if err == nil {
		return nil
	}
	return pgerr.Within("admin: "+call, pgerr.WithoutDSN(err))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", outbox.ErrInvalidOption, fmt.Sprintf(format, args...))
}

// checkText refuses text that PostgreSQL would refuse.
func checkText(name, text string) error {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return invalid("%s: %q: it must be valid UTF-8 without NUL", name, text)
	}
	return nil
}

func checkLength(name, text string, least, most int) error {
	if len(text) < least || len(text) > most {
		return invalid("%s has %d bytes, must have %d to %d", name, len(text), least, most)
	}
	return checkText(name, text)
}
