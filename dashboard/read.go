package dashboard

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const beginReadSQL = `/* outbox: dashboard: bound the statements of a page */
SELECT set_config('statement_timeout', $1, true), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// readFor runs f in a read-only transaction with the statement timeout of the config, and returns
// PostgreSQL's time.
func (s *site) readFor(ctx context.Context, f func(ctx context.Context, c *admin.Client) error) (now time.Time, err error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return now, fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
	}
	defer tx.Rollback() // it has written nothing
	var ignored string
	var micros int64
	if err := tx.QueryRowContext(ctx, beginReadSQL, strconv.FormatInt(s.config.StatementTimeout.Milliseconds(), 10)).Scan(&ignored, &micros); err != nil {
		return now, fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
	}
	return time.UnixMicro(micros), f(ctx, s.client.In(tx))
}

// read runs f for the page, and notes PostgreSQL's time.
func (v *view) read(f func(ctx context.Context, c *admin.Client) error) error {
	now, err := v.site.readFor(v.r.Context(), f)
	if !now.IsZero() {
		v.Now = now
	}
	return err
}
