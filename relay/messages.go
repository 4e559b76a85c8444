package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/txoutbox/outbox/internal/pgerr"
)

const beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"

// letGo lets the locks of a transaction go whose relay is frozen, or gone without a word. The server waits for the next statement of a dead connection for
// hours otherwise. It is for transactions that are more than one message.
var letGo = "SET LOCAL idle_in_transaction_session_timeout = " + ms(idleTimeout)

// inMessages is inTx for one query, whose rows each gets: it travels with begin in one message, where the driver takes several
// statements. atOnce sends COMMIT with it as well: for a query whose effects are known without its rows. Else COMMIT follows when
// the rows are here, as from inTx. Its error may be an unknown outcome, so the query must be harmless when repeated.
func (c *conns) inMessages(ctx context.Context, begin, query string, args []any, atOnce bool, each func([]driver.Value) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if !atOnce {
		begin += "; " + letGo
	}
	for try := 1; ; try++ {
		conn, err := c.get(ctx)
		if err != nil {
			return err
		}
		rows := 0
		err = c.raw(conn, func(e exclusive) error {
			after := ""
			if atOnce {
				after = "COMMIT"
			}
			err := e.together(ctx, begin, query, args, after, func(values []driver.Value) error {
				rows++
				return each(values)
			})
			if err == nil && !atOnce {
				_, err = e.ExecContext(ctx, "COMMIT")
			}
			return err
		})
		if err == nil {
			c.put(conn)
			return nil
		}
		drop(conn)
		// A connection that was dead before: nothing was committed, as COMMIT has not been sent.
		if atOnce || rows > 0 || try == beginTries || !pgerr.Lost(err) || pgerr.Code(err) != "" {
			return err
		}
	}
}

// queryTx is a query in a transaction, whose rows each gets.
func queryTx(ctx context.Context, tx *sql.Tx, query string, args []any, each func([]driver.Value) error) error {
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
