package pgdb_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

func ExampleOpen() {
	ctx := context.Background()
	_, dsn, drop := relaytest.ExampleServer()
	defer drop()

	db, err := pgdb.Open(dsn) // instead of sql.Open("postgres", dsn)
	relaytest.Must(err)
	defer db.Close()
	db.SetMaxOpenConns(12)
	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		enqueued, err := outbox.Enqueue(ctx, tx, "SEND_WELCOME", map[string]any{"user_id": 7})
		fmt.Println(enqueued.Outcome)
		return err
	}))
	// Output: created
}
