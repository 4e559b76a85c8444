// Two-services is an orders service and a billing service, each with a PostgreSQL of its own, and a
// NATS JetStream between them. Each order has one invoice in the end.
//
//	go run ./examples/two-services
//
// It places an order a second and prints the number of invoices, until Ctrl-C.
//
// An order and its event are one transaction in the database of orders (orders.go). A relay
// publishes the event. The billing service consumes it: package inbox and the invoice are one
// transaction in the other database (billing.go). The broker is a JetStream server in this process
// (broker.go); an app has one already. The databases are new, and dropped at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"golang.org/x/sync/errgroup"
)

func main() {
	devdb.Start(func(ctx context.Context) error {
		return devdb.WithOwn(ctx, func(orders string) error {
			return devdb.WithOwn(ctx, func(billing string) error {
				return run(ctx, orders, billing, time.Second, os.Stdout)
			})
		})
	})
}

// run runs the broker and both services, and places an order in each period, until ctx ends.
func run(ctx context.Context, ordersURL, billingURL string, period time.Duration, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "two-services")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	broker, err := startBroker(ctx, dir)
	if err != nil {
		return err
	}
	defer broker.WaitForShutdown()
	defer broker.Shutdown()
	orders, err := devdb.Open(ctx, ordersURL, ordersTables)
	if err != nil {
		return err
	}
	defer orders.Close()
	billing, err := devdb.Open(ctx, billingURL, billingTables)
	if err != nil {
		return err
	}
	defer billing.Close()
	services, ctx := errgroup.WithContext(ctx) // it ends also if one of them fails
	services.Go(func() error { return publish(ctx, orders, ordersURL, broker.ClientURL()) })
	services.Go(func() error { return consume(ctx, billing, broker.ClientURL()) })
	services.Go(func() error {
		for n := 1; ctx.Err() == nil; n++ {
			id, err := placeOrder(context.WithoutCancel(ctx), orders, fmt.Sprint("customer ", n%5), 100*n)
			if err != nil {
				return err
			}
			wait(ctx, period)
			var invoices int
			if err := billing.QueryRow(`SELECT count(*) FROM invoice`).Scan(&invoices); err != nil {
				return err
			}
			fmt.Fprintf(out, "order %d is placed; %d invoices\n", id, invoices)
		}
		return nil
	})
	return services.Wait()
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
