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
// ORDERS_DATABASE_URL and BILLING_DATABASE_URL name databases to use; without them the program
// finds or starts two PostgreSQL servers, which end with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/devpg"
)

var hasDemo = flag.Bool("demo", false, "place 5,000 orders while services and broker are killed, print what came of it, and exit")

func main() {
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("unexpected argument %q", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := runRole(ctx)
	if errors.Is(err, errNoRole) {
		err = withPlaces(ctx, func(p places) error {
			if *hasDemo {
				return demo{orders: 5000, kills: 20, lasting: 30 * time.Second}.run(ctx, p, os.Stdout)
			}
			return shop(ctx, p, os.Stdout)
		})
	}
	if err != nil {
		log.Fatal(err)
	}
}

// places are where the parts find each other.
type places struct{ orders, billing, broker, store string }

// withPlaces starts two PostgreSQL servers, unless the environment names databases, and chooses
// where the broker will be.
func withPlaces(ctx context.Context, f func(places) error) (err error) {
	p := places{orders: os.Getenv("ORDERS_DATABASE_URL"), billing: os.Getenv("BILLING_DATABASE_URL")}
	logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	for _, url := range []*string{&p.orders, &p.billing} {
		if *url != "" {
			continue
		}
		server, err2 := devpg.Open(ctx, logf)
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		*url = server.URL()
	}
	if p.store, err = os.MkdirTemp("", "two-services"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.store)) }()
	if p.broker, err = freeURL(); err != nil {
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
	db, err := openOrders(ctx, p.orders)
	if err != nil {
		return err
	}
	defer db.Close()
	billing, err := openBilling(ctx, p.billing)
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
		if err := billing.QueryRowContext(context.WithoutCancel(ctx), `SELECT count(*) FROM invoice`).Scan(&invoices); err != nil {
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
