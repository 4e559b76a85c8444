package inbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// A broker delivers an event twice, and one invoice is written.
func ExampleOnce() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	ctx := context.Background()
	_, err := db.ExecContext(ctx, `CREATE TABLE invoice (order_id bigint NOT NULL)`)
	relaytest.Must(err)
	consume := func(source, id string, orderID int) error {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			first, err := inbox.Once(ctx, tx, source, id)
			fmt.Println("first:", first)
			if err != nil || !first {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO invoice VALUES ($1)`, orderID)
			return err
		})
	}
	relaytest.Must(consume("/shop", "1", 7))
	relaytest.Must(consume("/shop", "1", 7))
	var invoices int
	relaytest.Must(db.QueryRowContext(ctx, `SELECT count(*) FROM invoice`).Scan(&invoices))
	fmt.Println("invoices:", invoices)

	// Output:
	// first: true
	// first: false
	// invoices: 1
}
