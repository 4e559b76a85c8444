package outboxpgx_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// What the bridge costs beside pgx's own driver for database/sql:
//
//	go test ./adapter/pgx -run '^$' -bench Enqueue -benchmem
func BenchmarkEnqueue(b *testing.B) {
	pool := newPool(b, relaytest.Migrated(b))
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	own, err := pool.Begin(b.Context())
	relaytest.Must(err)
	defer func() { _ = own.Rollback(context.Background()) }()
	plain, err := db.BeginTx(context.WithoutCancel(b.Context()), nil)
	relaytest.Must(err)
	defer func() { _ = plain.Rollback() }()
	for name, q := range map[string]outbox.Querier{"pgx.Tx": outboxpgx.Querier(own), "sql.Tx": plain} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err := outbox.Enqueue(context.Background(), q, "T", 1)
				relaytest.Must(err)
			}
		})
	}
}
