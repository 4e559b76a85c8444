package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/child"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestMain(m *testing.M) {
	child.Run(runRole)
	os.Exit(pgtest.Main(m))
}

func placesOf(t *testing.T) places {
	t.Helper()
	broker, err := freeURL()
	if err != nil {
		t.Fatal(err)
	}
	return places{pgtest.Database(t), pgtest.Database(t), broker, t.TempDir()}
}

func TestTheDemoLosesAndDoublesNothing(t *testing.T) {
	var out bytes.Buffer
	if err := (demo{orders: 300, kills: 6, lasting: 6 * time.Second}).run(t.Context(), placesOf(t), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, line := range []string{"orders     300\n", "invoices   300\n", "lost         0\n", "doubled      0\n",
		"kills        6\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the demo does not print %q:\n%s", line, out.String())
		}
	}
}

func TestTheDemoHasDatabasesOfItsOwn(t *testing.T) {
	t.Setenv("OUTBOX_TEST_DATABASE_URL", pgtest.Server(t).URL()) // for it to find
	t.Setenv("OUTBOX_TEST_POSTGRES", "url")
	own := func(then func(places) error) error {
		return withPlaces(t.Context(), "", "", func(p places) error {
			seen := map[string]bool{}
			for _, url := range []string{p.Orders, p.Billing, pgtest.Server(t).URL()} {
				seen[url] = true
			}
			if len(seen) != 3 {
				t.Errorf("the databases of orders and billing are one, or not new: %v", seen)
			}
			return then(p)
		})
	}
	if err := own(func(first places) error {
		return own(func(second places) error { // at once
			if first.Orders == second.Orders || first.Billing == second.Billing {
				t.Error("two demos share a database")
			}
			return nil
		})
	}); err != nil {
		t.Error(err)
	}
}

// The demo's count notices what it is there for.
func TestTheDemoCountsWhatIsLostAndDoubled(t *testing.T) {
	at := placesOf(t)
	orders, err := openOrders(t.Context(), at.Orders)
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	billing, err := openBilling(t.Context(), at.Billing)
	if err != nil {
		t.Fatal(err)
	}
	defer billing.Close()
	for n := range 3 {
		id, err := placeOrder(t.Context(), orders, "c", n)
		if err != nil {
			t.Fatal(err)
		}
		if n == 2 {
			continue // lost
		}
		for _, event := range []string{fmt.Sprint(n), fmt.Sprint(n), fmt.Sprint("another id of ", n)}[:2+n] {
			if err := bill(t.Context(), billing, "/orders", event, Order{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c, err := counted(t.Context(), orders, billing)
	if err != nil || c.lost() != 1 || c.doubled() != 1 {
		t.Errorf("%d lost, %d doubled, %v; want 1 and 1", c.lost(), c.doubled(), err)
	}
}
