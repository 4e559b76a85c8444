// Package shop is what the examples of web servers have in common: orders, for each of which a
// receipt is mailed and the customer's orders are counted.
package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// SendReceipt and CountOrder have the customer's address as payload.
var (
	SendReceipt = outbox.NewTaskType[string]("SEND_RECEIPT")
	CountOrder  = outbox.NewTaskType[string]("COUNT_ORDER")
)

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, CountOrder, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[string]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO customer AS c (email, orders) VALUES ($1, 1)
			ON CONFLICT (email) DO UPDATE SET orders = c.orders + 1`, task.Payload)
		return err
	})
	handlers.Leased(reg, SendReceipt, func(ctx context.Context, task *outbox.Task[string]) error {
		_, err := fmt.Fprintf(out, "mail to %s\n", task.Payload)
		return err
	})
	return reg
}

const tables = `CREATE TABLE IF NOT EXISTS shop_order (email text NOT NULL);
	CREATE TABLE IF NOT EXISTS customer (email text PRIMARY KEY, orders int NOT NULL)`

// Serve runs the server that routes returns and a relay, until ctx ends or one of them fails. A
// shutdown that loses no request is in examples/nethttp.
func Serve(ctx context.Context, url, addr string, out io.Writer, routes func(db *sql.DB) (http.Handler, error)) error {
	db, err := devdb.Open(ctx, url, tables)
	if err != nil {
		return err
	}
	defer db.Close()
	r, err := relay.New(db, registry(out), relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	handler, err := routes(db)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	server := &http.Server{Addr: addr, Handler: handler}
	go func() { stop(server.ListenAndServe()) }() // the relay ends with it
	err = r.Run(ctx)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, server.Close())
}
