package schema

import (
	"context"
	"database/sql"
)

// Querier is what [Check] needs: *sql.DB, *sql.Conn and *sql.Tx have it, and those of sqlx.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// pool is a *sql.DB or a *sqlx.DB: neither transactions nor connections have SetMaxOpenConns.
type pool interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	PingContext(ctx context.Context) error
	SetMaxOpenConns(n int)
}
