package run

import (
	"context"
	"database/sql/driver"
	"slices"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

const clockSQL = `/* outbox: the time */
SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint`

// noteTime asks for PostgreSQL's clock where MaxElapsed, or the span of a throttled task, counts from
// an earlier failure.
func (u *unit) noteTime(ctx context.Context, conn pg.Exclusive) error {
	counts := func(r *store.Row) bool {
		_, failed := r.FirstFailure()
		return failed && (u.h.MaxElapsed > 0 || r.Throttled())
	}
	if !slices.ContainsFunc(u.rows, counts) {
		return nil
	}
	return conn.Together(ctx, "", clockSQL, nil, "", func(values []driver.Value) error {
		for _, r := range u.rows {
			r.NoteTime(pg.Integer(values[0]))
		}
		return nil
	})
}
