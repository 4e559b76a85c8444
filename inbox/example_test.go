package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
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

// consumed consumes the event 1 of /shop.
func consumed(db *sql.DB, opts ...inbox.Option) {
	ctx := context.Background()
	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		first, err := inbox.Once(ctx, tx, "/shop", "1", opts...)
		fmt.Println("first:", first)
		return err
	}))
}

// A broker may deliver the event again within a year.
func ExampleRetention() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	consumed(db, inbox.Retention(365*24*time.Hour))
	consumed(db)
	// Output:
	// first: true
	// first: false
}

// A service that runs no relay, which would do it, forgets old events now and then.
func ExamplePurge() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	consumed(db)
	fmt.Println(inbox.Purge(context.Background(), db)) // the event is remembered for 30 days
	// Output:
	// first: true
	// 0 <nil>
}

// The inbox of another schema has events of its own.
func ExampleSchema() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	relaytest.Must(schema.Migrate(context.Background(), db, schema.Schema("acme")))
	consumed(db)
	consumed(db, inbox.Schema("acme"))
	// Output:
	// first: true
	// first: true
}
