// Two-services is an orders service and a billing service, each with a PostgreSQL of its own, and a
// NATS JetStream between them. Each order has one invoice in the end, whatever dies in between.
//
//	go run ./examples/two-services
//	go run ./examples/two-services -demo
//
// The first command places an order a second and prints what comes of it, until Ctrl-C. With -demo
// 5,000 orders are placed while the two services and the broker are killed 20 times; then the
// invoices are counted.
//
// An order and its event are one transaction in the database of orders (orders.go). A relay
// publishes the event. The billing service consumes it: package inbox and the invoice are one
// transaction in the other database (billing.go). The broker is a JetStream server in a process of
// this program (broker.go); an app has one already.
//
// ORDERS_DATABASE_URL and BILLING_DATABASE_URL name databases to use. Without them, and always with
// -demo, the program makes two databases, on PostgreSQL servers that it finds or starts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/child"
)

const ordersVariable, billingVariable = "ORDERS_DATABASE_URL", "BILLING_DATABASE_URL"

var hasDemo = flag.Bool("demo",
	false, "place 5,000 orders while services and broker are killed, print what came of it, and exit")

func main() {
	child.Run(runRole)
	devdb.Start(func(ctx context.Context) error {
		if *hasDemo {
			fmt.Printf("the demo has two databases of its own, which are dropped at its end%s\n",
				devdb.Ignored(ordersVariable, billingVariable))
			return withPlaces(ctx, "", "", func(p places) error {
				return demo{orders: 5000, kills: 20, lasting: 30 * time.Second}.run(ctx, p, os.Stdout)
			})
		}
		return withPlaces(ctx, os.Getenv(ordersVariable), os.Getenv(billingVariable), func(p places) error {
			return shop(ctx, p, os.Stdout)
		})
	})
}

// places are where the parts find each other.
type places struct{ Orders, Billing, Broker, Store string }

// withPlaces finds or starts a PostgreSQL for each database that is not named, makes a database
// there that is dropped afterwards, and chooses where the broker will be.
func withPlaces(ctx context.Context, orders, billing string, f func(places) error) (err error) {
	for _, url := range []*string{&orders, &billing} {
		if *url == "" {
			return devdb.WithOwn(ctx, func(own string) error {
				*url = own
				return withPlaces(ctx, orders, billing, f)
			})
		}
	}
	p := places{Orders: orders, Billing: billing}
	if p.Store, err = os.MkdirTemp("", "two-services"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.Store)) }()
	if p.Broker, err = freeURL(); err != nil {
		return err
	}
	return f(p)
}

// shop runs all parts, places an order a second, and prints the invoices.
func shop(ctx context.Context, p places, out io.Writer) error {
	parts, err := startAll(p)
	defer parts.stop()
	if err != nil {
		return err
	}
	db, err := openOrders(ctx, p.Orders)
	if err != nil {
		return err
	}
	defer db.Close()
	billing, err := openBilling(ctx, p.Billing)
	if err != nil {
		return err
	}
	defer billing.Close()
	fmt.Fprintln(out, "an order a second; Ctrl-C ends")
	for n := 1; ctx.Err() == nil; n++ {
		id, err := placeOrder(ctx, db, fmt.Sprint("customer ", n%5), 100*n)
		if err != nil {
			return err
		}
		wait(ctx, time.Second)
		var invoices int
		if err := billing.QueryRowContext(context.WithoutCancel(ctx),
			`SELECT count(*) FROM invoice`).Scan(&invoices); err != nil {
			return err
		}
		fmt.Fprintf(out, "order %d is placed; %d invoices\n", id, invoices)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
