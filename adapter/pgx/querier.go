package outboxpgx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/txoutbox/outbox"
)

// Querier is tx for the functions of package outbox, and those of package inbox: TaskType.Enqueue,
// Outbox.Enqueue, Cancel, RunNow and Stats. Their statements are sent by tx.Query. It never begins,
// commits, rolls back or prepares anything, and needs no Close. It is as safe for concurrent use as
// tx, which is not at all. Rows that it returns are to be closed before the next statement on tx.
//
// Of a nil tx, or a nil pointer in it, it is nil, which these functions refuse with
// outbox.ErrNoTransaction, and Stats does not take.
func Querier(tx pgx.Tx) outbox.Querier {
	if tx == nil {
		return nil
	}
	if v := reflect.ValueOf(tx); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	return querier{bridge{tx}}
}

// querier makes the *sql.Rows and *sql.Row that only database/sql can make. Each statement has a
// *sql.DB of its own, whose one connection is the transaction: a pool keeps a goroutine while it is
// open, and rows outlive the Close of their pool.
type querier struct{ bridge bridge }

func (q querier) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	db := sql.OpenDB(q.bridge)
	defer db.Close()
	return db.ExecContext(ctx, query, args...)
}

func (q querier) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	db := sql.OpenDB(q.bridge)
	defer db.Close()
	return db.QueryContext(ctx, query, args...)
}

func (q querier) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	db := sql.OpenDB(q.bridge)
	defer db.Close()
	return db.QueryRowContext(ctx, query, args...)
}

// bridge is a connector and a connection of database/sql over a transaction that others begin and
// end.
type bridge struct{ tx pgx.Tx }

var (
	_ driver.Connector         = bridge{}
	_ driver.ExecerContext     = bridge{}
	_ driver.QueryerContext    = bridge{}
	_ driver.NamedValueChecker = bridge{}
)

var errStatementsOnly = errors.New("outboxpgx: a Querier sends statements only")

func (b bridge) Connect(context.Context) (driver.Conn, error) { return b, nil }
func (b bridge) Driver() driver.Driver                        { return b }
func (b bridge) Open(string) (driver.Conn, error)             { return nil, errStatementsOnly }
func (b bridge) Begin() (driver.Tx, error)                    { return nil, errStatementsOnly }
func (b bridge) Prepare(string) (driver.Stmt, error)          { return nil, errStatementsOnly }
func (b bridge) Close() error                                 { return nil }

// CheckNamedValue passes arguments on as they are: pgx knows driver.Valuer.
func (b bridge) CheckNamedValue(v *driver.NamedValue) error {
	if v.Name != "" {
		return fmt.Errorf("outboxpgx: the parameter %s has a name: use $1 and on", v.Name)
	}
	return nil
}

func (b bridge) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	tag, err := b.tx.Exec(ctx, query, values(nil, args)...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

func (b bridge) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	found, err := b.tx.Query(ctx, query, values([]any{resultFormats}, args)...)
	if err != nil {
		return nil, err
	}
	more := found.Next() // some modes know the columns only then
	if err := found.Err(); err != nil {
		found.Close()
		return nil, err
	}
	r := &rows{found: found, more: more}
	for _, f := range found.FieldDescriptions() {
		r.columns = append(r.columns, f.Name)
		r.targets = append(r.targets, target(f.DataTypeOID))
	}
	return r, nil
}

func values(first []any, args []driver.NamedValue) []any {
	for _, a := range args { // CheckNamedValue refuses names
		first = append(first, a.Value)
	}
	return first
}

// resultFormats asks for the binary format of the types that target does not read as text. The text
// of times, for one, depends on settings. Modes without a description get text for all.
var resultFormats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: pgx.BinaryFormatCode, pgtype.ByteaOID: pgx.BinaryFormatCode,
	pgtype.Int2OID: pgx.BinaryFormatCode, pgtype.Int4OID: pgx.BinaryFormatCode, pgtype.Int8OID: pgx.BinaryFormatCode,
	pgtype.OIDOID: pgx.BinaryFormatCode, pgtype.Float4OID: pgx.BinaryFormatCode,
	pgtype.Float8OID: pgx.BinaryFormatCode, pgtype.DateOID: pgx.BinaryFormatCode,
	pgtype.TimestampOID: pgx.BinaryFormatCode, pgtype.TimestamptzOID: pgx.BinaryFormatCode,
}

// target takes the values of a column, NULL too, and gives them to database/sql. They are as of
// pgx's own driver for database/sql.
func target(oid uint32) driver.Valuer {
	switch oid {
	case pgtype.BoolOID:
		return &pgtype.Bool{}
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return &pgtype.Int8{}
	case pgtype.OIDOID:
		return &pgtype.Uint32{}
	case pgtype.Float4OID, pgtype.Float8OID:
		return &pgtype.Float8{}
	case pgtype.DateOID:
		return &pgtype.Date{}
	case pgtype.TimestampOID:
		return &pgtype.Timestamp{}
	case pgtype.TimestamptzOID:
		return &pgtype.Timestamptz{}
	case pgtype.ByteaOID, pgtype.JSONOID, pgtype.JSONBOID:
		return &bytesTarget{}
	}
	return &pgtype.Text{}
}

// bytesTarget is nil for NULL.
type bytesTarget []byte

func (b *bytesTarget) Value() (driver.Value, error) {
	if *b == nil {
		return nil, nil
	}
	return []byte(*b), nil
}

// rows are those of a statement whose first row was read, if there is one.
type rows struct {
	found   pgx.Rows
	columns []string
	targets []driver.Valuer
	more    bool
	begun   bool
}

func (r *rows) Columns() []string { return r.columns }

func (r *rows) Close() error {
	r.found.Close()
	return r.found.Err()
}

func (r *rows) Next(dest []driver.Value) error {
	if r.begun {
		r.more = r.found.Next()
	}
	r.begun = true
	if !r.more {
		if err := r.found.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	into := make([]any, len(r.targets))
	for i, t := range r.targets {
		into[i] = t
		if b, ok := t.(*bytesTarget); ok {
			into[i] = (*[]byte)(b)
		}
	}
	if err := r.found.Scan(into...); err != nil {
		return err
	}
	for i, t := range r.targets {
		var err error
		if dest[i], err = t.Value(); err != nil {
			return err
		}
	}
	return nil
}
