package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// demo places orders while parts are killed, then counts.
type demo struct {
	orders  int
	kills   int
	lasting time.Duration
}

func (d demo) run(ctx context.Context, at places, out io.Writer) error {
	began := time.Now()
	orders, err := openOrders(ctx, at.Orders)
	if err != nil {
		return err
	}
	defer orders.Close()
	billing, err := openBilling(ctx, at.Billing)
	if err != nil {
		return err
	}
	defer billing.Close()
	if before, err := counted(ctx, orders, billing); err != nil || before != (counts{}) {
		return errors.Join(err,
			fmt.Errorf("the demo counts all orders and invoices, so it needs databases without any: %+v", before))
	}
	fmt.Fprintf(out, "%d orders are placed, %d times a service or the broker is killed\n", d.orders, d.kills)
	all, err := startAll(at)
	defer all.stop()
	if err != nil {
		return err
	}
	placed := make(chan error, 1)
	go func() { placed <- d.place(ctx, orders) }()
	err = d.disturb(ctx, at, all, out)
	if err = errors.Join(err, <-placed); err != nil {
		return err
	}
	c, err := d.settled(ctx, orders, billing)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\norders   %5d\ninvoices %5d\nlost     %5d\ndoubled  %5d\nkills    %5d\n\nin %.0f s\n", c.orders,
		c.invoices, c.lost(), c.doubled(), d.kills, time.Since(began).Seconds())
	if c.orders != d.orders || c.lost() != 0 || c.doubled() != 0 {
		return errors.New("the numbers are not as promised")
	}
	return nil
}

// place places the orders at an even pace, those of 50 customers.
func (d demo) place(ctx context.Context, db *sql.DB) error {
	began := time.Now()
	for n := range d.orders {
		wait(ctx, d.lasting*time.Duration(n)/time.Duration(d.orders)-time.Since(began))
		if _, err := placeOrder(ctx, db, fmt.Sprint("customer ", n%50), n); err != nil {
			return fmt.Errorf("order %d: %w", n, err)
		}
	}
	return nil
}

// disturb kills one part after the other, in a random order, and starts it again.
func (d demo) disturb(ctx context.Context, at places, all parts, out io.Writer) error {
	for n := range d.kills {
		between := d.lasting / time.Duration(d.kills)
		wait(ctx, between/2+rand.N(between/2))
		p := all[rand.IntN(len(all))]
		p.Kill9()
		fmt.Fprintf(out, "kill %d of %d: %s\n", n+1, d.kills, p.role)
		wait(ctx, rand.N(between/4))
		if err := p.start(at); err != nil {
			return err
		}
	}
	return ctx.Err()
}

type counts struct{ orders, invoices, billed int }

func (c counts) lost() int    { return c.orders - c.billed }
func (c counts) doubled() int { return c.invoices - c.billed }

func counted(ctx context.Context, orders, billing *sql.DB) (c counts, err error) {
	err = errors.Join(
		orders.QueryRowContext(ctx, `SELECT count(*) FROM customer_order`).Scan(&c.orders),
		billing.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT order_id) FROM invoice`).Scan(&c.invoices, &c.billed))
	return c, err
}

// settled waits until each order has an invoice and nothing is left to publish, or for three
// minutes. Then a while more, in which a second invoice would come.
func (d demo) settled(ctx context.Context, orders, billing *sql.DB) (c counts, err error) {
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline) &&
		ctx.Err() == nil; wait(ctx, 200*time.Millisecond) {
		var left int
		if err := orders.QueryRowContext(ctx, `SELECT count(*) FROM outbox.task`).Scan(&left); err != nil {
			return c, err
		}
		if c, err = counted(ctx, orders, billing); err != nil {
			return c, err
		}
		if left == 0 && c.lost() == 0 {
			break
		}
	}
	wait(ctx, 5*time.Second) // longer than the consumer's AckWait
	return counted(ctx, orders, billing)
}
