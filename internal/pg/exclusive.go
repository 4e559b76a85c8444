package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
)

var ErrDriver = errors.New("relay: the pool's driver does not implement driver.ExecerContext and driver.QueryerContext")

// driverConn is what a connection of lib/pq or pgx is.
type driverConn interface {
	driver.ExecerContext
	driver.QueryerContext
}

// Exclusive is a connection, a claim's or the journal's, while nobody else can use it. At any other
// time a goroutine that outlived its handler could use the handler's transaction. It could write
// between an undo and the commit, or read the reply to another query.
type Exclusive struct {
	conn    driverConn
	several bool // it takes several statements in one message and returns a result of each
	tx      *sql.Tx
}

// Within is an Exclusive over a transaction of the caller, which keeps others from it.
func Within(tx *sql.Tx) Exclusive { return Exclusive{tx: tx} }

// Raw calls f with the driver's connection, which nobody else has meanwhile.
func (p *Pool) Raw(conn *sql.Conn, f func(Exclusive) error) (err error) {
	rawErr := conn.Raw(func(conn any) error {
		// Raw must see neither an error nor a panic: it may close the connection, which waits for
		// the end of the transaction.
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("relay: the driver: %w", guard.Panic(v))
			}
		}()
		err = f(Exclusive{conn: conn.(driverConn), several: p.several})
		return nil
	})
	return errors.Join(rawErr, err)
}

// Exclusively calls f for what Own calls its function with.
func (p *Pool) Exclusively(q Querier, f func(Exclusive) error) error {
	if tx, within := q.(*sql.Tx); within {
		return f(Within(tx))
	}
	return p.Raw(q.(*sql.Conn), f)
}

// ExecContext is that of a *sql.Tx.
func (c Exclusive) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if c.tx != nil {
		return c.tx.ExecContext(ctx, query, args...)
	}
	values, err := driverValues(args)
	if err != nil {
		return nil, err
	}
	return c.conn.ExecContext(ctx, query, values)
}

// Together sends statements without parameters, a query, and again statements without parameters:
// in one message, where the driver takes several, or one after the other until one fails. It calls
// each for every row; the values are valid during the call.
func (c Exclusive) Together(ctx context.Context, before, query string, args []any, after string,
	each func([]driver.Value) error) error {
	if c.several {
		values, err := driverValues(args)
		if err != nil {
			return err
		}
		query = inline(query, values)
		if before != "" {
			name, rest, _ := strings.Cut(query, "\n") // the comment stays first, where operators look for it
			query = name + " " + before + "; " + rest
		}
		if after != "" {
			query += "; " + after
		}
		return c.query(ctx, query, nil, each)
	}
	if before != "" {
		if _, err := c.ExecContext(ctx, before); err != nil {
			return err
		}
	}
	if err := c.query(ctx, query, args, each); err != nil || after == "" {
		return err
	}
	_, err := c.ExecContext(ctx, after)
	return err
}

func (c Exclusive) query(ctx context.Context, query string, args []any, each func([]driver.Value) error) error {
	if c.tx != nil {
		return QueryTx(ctx, c.tx, query, args, each)
	}
	given, err := driverValues(args)
	if err != nil {
		return err
	}
	rows, err := c.conn.QueryContext(ctx, query, given)
	if err != nil {
		return err
	}
	values := make([]driver.Value, len(rows.Columns()))
	for err == nil {
		if err = rows.Next(values); err == nil {
			err = each(values)
		}
	}
	if err == io.EOF {
		err = nil
	}
	// Once: lib/pq closes the connection or panics, now and then, when its rows are closed twice.
	return errors.Join(err, rows.Close())
}

// inline puts arguments into a query, which has a $ before their numbers only, as literals without
// a type. A message of several statements takes no parameters. No argument is a payload.
func inline(query string, args []driver.NamedValue) string {
	if len(args) == 0 {
		return query
	}
	b := make([]byte, 0, len(query)+64*len(args))
	for {
		at := strings.IndexByte(query, '$')
		if at < 0 {
			return string(append(b, query...))
		}
		end, n := at+1, 0
		for ; end < len(query) && '0' <= query[end] && query[end] <= '9'; end++ {
			n = 10*n + int(query[end]-'0')
		}
		b = append(b, query[:at]...)
		query = query[end:]
		switch v := args[n-1].Value.(type) {
		case nil:
			b = append(b, "NULL"...)
		case int64:
			b = append(strconv.AppendInt(append(b, '\''), v, 10), '\'')
		default:
			b = appendLiteral(b, Text(v))
		}
	}
}

func appendLiteral(b []byte, text string) []byte {
	if strings.ContainsAny(text, `'\`) {
		return append(b, pq.QuoteLiteral(text)...)
	}
	return append(append(append(b, '\''), text...), '\'')
}

func driverValues(args []any) ([]driver.NamedValue, error) {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(arg)
		if err != nil {
			return nil, err
		}
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return values, nil
}

// Text, boolean and integer read what a driver returned; NULL is "", false or 0.
func Text(v driver.Value) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}

func Boolean(v driver.Value) bool {
	b, _ := v.(bool)
	return b
}

func Integer(v driver.Value) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	n, _ := strconv.ParseInt(Text(v), 10, 64)
	return n
}

// PostgreSQL 17 has the setting; older servers refuse to set it. A statement by the extended
// protocol has an unnamed portal, which takes one statement only.
const driverSQL = `/* outbox: whether there is a transaction_timeout, the protocol of the driver, and who is here */
SELECT pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL,
       EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE name = ''), current_user, pg_catalog.current_database()`

// CheckDriver refuses a driver that Exclusive cannot use. It notes which messages the driver takes,
// which settings the server has, and the role and its database.
func (p *Pool) CheckDriver(ctx context.Context) (err error) {
	conn, err := p.Get(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // a connection that is put back broken would be lent again at the next try
			Drop(conn)
			return
		}
		p.Put(conn)
	}()
	var timed, extended bool
	var login Login
	if err := conn.QueryRowContext(ctx, driverSQL).Scan(&timed, &extended, &login.Role, &login.Database); err != nil {
		return err
	}
	p.login.Store(&login)
	if timed {
		p.untimed = "SET LOCAL transaction_timeout = 0; "
	}
	return conn.Raw(func(conn any) error {
		d, ok := conn.(driverConn)
		if !ok {
			return ErrDriver
		}
		if extended {
			return nil
		}
		p.several, err = severalResults(ctx, d)
		return err
	})
}

// severalResults reports whether the driver sends several statements in one message, and returns
// the result of the first query and the errors of all. lib/pq does; pgx prepares, which is for one.
func severalResults(ctx context.Context, conn driverConn) (bool, error) {
	rows, err := conn.QueryContext(ctx, "BEGIN; SELECT 'a'; ROLLBACK", nil)
	if pgerr.Code(err) == "42601" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	values := make([]driver.Value, 1)
	one := len(rows.Columns()) == 1 && rows.Next(values) == nil && Text(values[0]) == "a"
	several := one && rows.Next(values) == io.EOF
	return several, rows.Close()
}

// InMessages is InTx for one query, whose rows each gets: it travels with BEGIN and the settings in
// one message, where the driver takes several statements. atOnce sends COMMIT with it as well: for
// a query whose effects are known without its rows. Else COMMIT follows when the rows are here, as
// from InTx. Its error may be an unknown outcome, so the query must be harmless when repeated.
func (p *Pool) InMessages(ctx context.Context, settings, query string, args []any, atOnce bool,
	each func([]driver.Value) error) error {
	ctx, cancel := context.WithTimeout(ctx, StatementTimeout)
	defer cancel()
	for try := 1; ; try++ {
		conn, err := p.Get(ctx)
		if err != nil {
			return err
		}
		begin, rows := separated(beginSQL, p.guard(), settings), 0
		if !atOnce {
			begin = separated(begin, letGo)
		}
		err = p.Raw(conn, func(e Exclusive) error {
			after := ""
			if atOnce {
				after = "COMMIT"
			}
			err := e.Together(ctx, begin, query, args, after, func(values []driver.Value) error {
				rows++
				return each(values)
			})
			if err == nil && !atOnce {
				_, err = e.ExecContext(ctx, "COMMIT")
			}
			return err
		})
		if err == nil {
			p.Put(conn)
			return nil
		}
		Drop(conn)
		// A connection that was dead before: nothing was committed, as COMMIT has not been sent.
		if atOnce || rows > 0 || try == beginTries || !pgerr.Lost(err) || pgerr.Code(err) != "" {
			return err
		}
	}
}

// QueryTx is a query in a transaction, whose rows each gets.
func QueryTx(ctx context.Context, tx *sql.Tx, query string, args []any, each func([]driver.Value) error) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	found, values, into := make([]any, len(columns)), make([]driver.Value, len(columns)), make([]any, len(columns))
	for i := range found {
		into[i] = &found[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, v := range found {
			values[i] = v
		}
		if err := each(values); err != nil {
			return err
		}
	}
	return rows.Err()
}
