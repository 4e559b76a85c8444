package outbox_test

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox/internal/testing/enqueuetest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// adapter/pgx, examples/gorm and examples/bun run the same on their clients. It is not parallel, as it
// counts wake-ups.
func TestEachClientEnqueuesTheSameRows(t *testing.T) {
	url := relaytest.Migrated(t)
	with := func(driver, key, value string) *sqlx.DB {
		return sqlx.NewDb(open(t, driver, withParameter(t, url, key, value)), "postgres")
	}
	binary := with("postgres", "binary_parameters", "yes")
	exec := with("pgx", "default_query_exec_mode", "exec")
	simple := with("pgx", "default_query_exec_mode", "simple_protocol")
	enqueuetest.Run(t, url,
		enqueuetest.SQL("sql.Tx_lib_pq", open(t, "postgres", url)),
		enqueuetest.SQL("sql.Tx_lib_pq_binary_parameters", binary.DB),
		enqueuetest.Sqlx("sqlx.Tx_lib_pq", binary),
		enqueuetest.Conn("sql.Conn_lib_pq", open(t, "postgres", url)),
		enqueuetest.SQL("sql.Tx_pgx", open(t, "pgx", url)),
		enqueuetest.Conn("sql.Conn_pgx_exec", exec.DB),
		enqueuetest.SQL("sql.Tx_pgx_simple_protocol", simple.DB))
}
