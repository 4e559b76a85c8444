package pg

import (
	"context"
	"database/sql/driver"

	"github.com/txoutbox/outbox/internal/pgerr"
)

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
