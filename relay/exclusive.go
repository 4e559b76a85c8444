package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

var errDriver = errors.New("relay: the pool's driver does not implement driver.ExecerContext and driver.QueryerContext")

// driverConn is what a connection of lib/pq or pgx is.
type driverConn interface {
	driver.ExecerContext
	driver.QueryerContext
}

// exclusive is a claim's connection while nobody else can use it. At any other time a goroutine that outlived its
// handler could, through the handler's transaction: write between an undo and the commit, or take the answer to
// another question.
type exclusive struct{ conn driverConn }

// exclusively calls f, whose context bounds its statements.
func (a *attempt) exclusively(f func(context.Context, exclusive) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*bookkeeping)
	defer cancel()
	rawErr := a.conn.Raw(func(conn any) error {
		// Raw must see neither an error nor a panic: it may close the connection, which waits for the end of the
		// transaction.
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("relay: the driver panicked: %v", p)
			}
		}()
		err = f(ctx, exclusive{conn.(driverConn)})
		return nil
	})
	return errors.Join(rawErr, err)
}

// ExecContext is that of a *sql.Tx.
func (c exclusive) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(arg)
		if err != nil {
			return nil, err
		}
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return c.conn.ExecContext(ctx, query, values)
}

// texts reads a row of texts; NULL is a text that nothing equals.
func (c exclusive) texts(ctx context.Context, query string) ([]string, error) {
	rows, err := c.conn.QueryContext(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	values := make([]driver.Value, len(rows.Columns()))
	err = rows.Next(values)
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprintf("%s", v)
	}
	// Once: lib/pq closes the connection or panics, now and then, when its rows are closed twice.
	return out, errors.Join(err, rows.Close())
}

// checkDriver refuses a driver without what exclusive needs.
func (c *conns) checkDriver(ctx context.Context) error {
	conn, err := c.get(ctx)
	if err != nil {
		return err
	}
	defer c.put(conn)
	return conn.Raw(func(conn any) error {
		if _, ok := conn.(driverConn); !ok {
			return errDriver
		}
		return nil
	})
}
