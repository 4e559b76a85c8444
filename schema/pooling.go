package schema

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// explainBegin adds to an error of BEGIN that the pooler has no transactions. PgBouncer in statement
// mode says so and ends the connection. lib/pq returns driver.ErrBadConn instead of such an error:
// then each BEGIN on p fails, and each single statement passes. It holds no connection of p.
func explainBegin(ctx context.Context, p pool, err error) error {
	said := pgerr.Code(err) == "08P01" && strings.Contains(err.Error(), "statement pooling mode")
	if said || errors.Is(err, driver.ErrBadConn) && pings(ctx, p) && noBegin(ctx, p) && pings(ctx, p) {
		return fmt.Errorf("%w (%w)", ErrStatementPooling, err)
	}
	return err
}

func pings(ctx context.Context, p pool) bool { return p.PingContext(ctx) == nil }

// noBegin reports whether the connection ends at BEGIN. database/sql tries it three times, the last
// time on a new connection.
func noBegin(ctx context.Context, p pool) bool {
	tx, err := p.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		_ = tx.Rollback()
	}
	return errors.Is(err, driver.ErrBadConn)
}
