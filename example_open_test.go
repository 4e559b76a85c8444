package outbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func ExampleOpen() {
	ctx := context.Background()
	_, dsn, drop := relaytest.ExampleServer()
	defer drop()

	db, err := outbox.Open(dsn) // instead of sql.Open("postgres", dsn)
	must(err)
	defer db.Close()
	db.SetMaxOpenConns(12)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		enqueued, err := outbox.Enqueue(ctx, tx, "SEND_WELCOME", map[string]any{"user_id": 7})
		fmt.Println(enqueued.Outcome)
		return err
	}))
	// Output: created
}
