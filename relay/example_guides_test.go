package relay_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Declarations without a comment on their example are blocks of docs/coming-from/goroutines.md,
// docs/guide/endpoints.md and docs/guide/steps.md, line by line: repotest compares them.

// From is the part of a request that a task needs.
type From struct {
	Tenant, Locale, BaseURL string
	UserID                  int64
}

type fromKey struct{}

// Context is for the app's middleware and the handler.
func (f From) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, fromKey{}, f)
}

func FromContext(ctx context.Context) From {
	f, _ := ctx.Value(fromKey{}).(From)
	return f
}

type Receipt struct {
	From    From
	OrderID int64
}

var SendReceipt = outbox.NewTaskType[Receipt]("SEND_RECEIPT")

// placeOrder runs in the request.
func placeOrder(ctx context.Context, tx *sql.Tx, orderID int64) error {
	_, err := SendReceipt.Enqueue(ctx, tx, Receipt{From: FromContext(ctx), OrderID: orderID})
	return err
}

// sendReceipts registers the handler. mail is the function that the goroutine called.
func sendReceipts(reg *handlers.Registry, mail func(ctx context.Context, orderID int64, key string) error) {
	handlers.Leased(reg, SendReceipt, func(ctx context.Context, task *outbox.Task[Receipt]) error {
		return mail(task.Payload.From.Context(ctx), task.Payload.OrderID, task.Key())
	})
}

// A handler has the values of the request, whose context has ended.
func Example_requestContext() {
	db, drop := exampleDatabase()
	defer drop()
	from := From{Tenant: "acme", Locale: "de", BaseURL: "https://acme.example", UserID: 7}
	request, end := context.WithCancel(from.Context(context.Background()))
	must(outbox.InTx(request, db, func(tx *sql.Tx) error { return placeOrder(request, tx, 42) }))
	end()
	reg := handlers.New()
	sendReceipts(reg, func(ctx context.Context, orderID int64, _ string) error {
		fmt.Printf("order %d: %+v\n", orderID, FromContext(ctx))
		return ctx.Err()
	})
	runDue(context.Background(), db, reg)
	// Output: order 42: {Tenant:acme Locale:de BaseURL:https://acme.example UserID:7}
}

type (
	Newsletter struct{ IssueID, After int64 }
	Issue      struct{ IssueID, UserID int64 }
)

var (
	SendNewsletter = outbox.NewTaskType[Newsletter]("SEND_NEWSLETTER")
	SendIssue      = outbox.NewTaskType[Issue]("SEND_ISSUE")
)

// fanOut is a Tx handler. It enqueues a task for each subscriber, 1,000 in a transaction.
func fanOut(ctx context.Context, tx *sql.Tx, task *outbox.Task[Newsletter]) error {
	const page = 1000
	rows, err := tx.QueryContext(ctx, `SELECT usr_id FROM subscriber WHERE usr_id > $1 ORDER BY usr_id LIMIT $2`,
		task.Payload.After, page)
	if err != nil {
		return err
	}
	defer rows.Close()
	next := task.Payload
	var issues []outbox.TaskSpec
	for rows.Next() {
		if err := rows.Scan(&next.After); err != nil {
			return err
		}
		issues = append(issues, SendIssue.New(Issue{IssueID: next.IssueID, UserID: next.After}))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if _, err := outbox.EnqueueMany(ctx, tx, issues); err != nil || len(issues) < page {
		return err
	}
	return handlers.RunAgainWith(task, 0, next)
}

// Each subscriber gets one task, though a run fails after it has enqueued its page.
func Example_fanOut() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.Exec(`CREATE TABLE subscriber AS SELECT n::bigint AS usr_id FROM generate_series(1, 2500) n`)
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := SendNewsletter.Enqueue(ctx, tx, Newsletter{IssueID: 5})
		return err
	}))
	reg, runs := handlers.New(), 0
	handlers.Tx(reg, SendNewsletter, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Newsletter]) error {
		runs++
		err := fanOut(ctx, tx, task)
		if runs == 2 {
			return errors.New("the second page fails once")
		}
		return err
	}, handlers.Backoff(atOnceAgain), handlers.NoJitter())
	runDue(ctx, db, reg)
	var tasks, users int
	must(db.QueryRow(`SELECT count(*), count(DISTINCT payload ->> 'UserID') FROM outbox.task
		WHERE task_type = 'SEND_ISSUE'`).Scan(&tasks, &users))
	fmt.Println(runs, "runs,", tasks, "tasks for", users, "users")
	// Output: 4 runs, 2500 tasks for 2500 users
}

// atOnceAgain is a backoff for examples, which do not wait.
func atOnceAgain(int, error) (wait time.Duration, again bool) { return 0, true }

// A relay without a Logger writes where package log writes, and so nowhere if that is discarded.
func Example_standardLog() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(context.Context, *outbox.Task[int]) error {
		return handlers.Dead(errors.New("the image is broken"))
	})
	enqueueInts(ctx, db, typeResize, 1)
	var out bytes.Buffer
	log.SetOutput(&out)
	defer log.SetOutput(os.Stderr)
	r, err := relay.New(db, reg, relay.Config{})
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println("by default:", strings.Contains(out.String(), "the image is broken"))
	out.Reset()
	enqueueInts(ctx, db, typeResize, 1)
	r, err = relay.New(db, reg, relay.Config{Logger: discard()}) // or any other that the app makes
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println("with a Logger:", out.Len() > 0)
	// Output:
	// by default: true
	// with a Logger: false
}

type ShopCall struct {
	ShopID int64
	Body   string
}

var CallShop = outbox.NewTaskType[ShopCall]("CALL_SHOP")

func tellShop(ctx context.Context, tx *sql.Tx, c ShopCall) error {
	_, err := CallShop.Enqueue(ctx, tx, c, outbox.GroupBy(strconv.FormatInt(c.ShopID, 10)))
	return err
}

// shopError says which shop did not take a call.
type shopError struct {
	shopID int64
	err    error
}

func (e *shopError) Error() string { return e.err.Error() }
func (e *shopError) Unwrap() error { return e.err }

// callShops registers the handler. urlOf reads the shop's row, so waiting tasks get a new URL. Of a
// closed shop it returns handlers.Discard(err).
func callShops(reg *handlers.Registry, urlOf func(ctx context.Context, shopID int64) (string, error)) {
	handlers.Leased(reg, CallShop, func(ctx context.Context, task *outbox.Task[ShopCall]) error {
		url, err := urlOf(ctx, task.Payload.ShopID)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(task.Payload.Body))
		if err != nil {
			return handlers.Dead(err)
		}
		request.Header.Set("Idempotency-Key", task.Key())
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return &shopError{task.Payload.ShopID, err}
		}
		defer response.Body.Close()
		if response.StatusCode < 300 {
			return nil
		}
		err = &shopError{task.Payload.ShopID, errors.New(response.Status)}
		switch response.StatusCode {
		case http.StatusGone:
			return handlers.Dead(err)
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			return handlers.RetryAfter(retryAfter(response.Header.Get("Retry-After")), err)
		}
		return err
	}, handlers.Timeout(15*time.Second), handlers.MaxRunningPerKey(1))
}

// retryAfter reads seconds or a date, and returns an hour at most.
func retryAfter(value string) time.Duration {
	if n, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(n, 3600)) * time.Second
	}
	at, _ := http.ParseTime(value)
	return min(time.Until(at), time.Hour)
}

// closeShops is a relay.Config.OnDead.
func closeShops(db *sql.DB) func(context.Context, relay.DeadLetter) {
	return func(ctx context.Context, d relay.DeadLetter) {
		var e *shopError
		if !errors.As(d.Err, &e) {
			return
		}
		if _, err := db.ExecContext(ctx, `UPDATE shop SET closed_at = now() WHERE shop_id = $1`, e.shopID); err != nil {
			logger.Error("a shop stays open", "shop", e.shopID, "error", err)
		}
	}
}

var logger = discard()

// One of two workers is enough for the others while a shop hangs. A shop that asks to wait uses no
// attempt, and a shop that is gone is closed.
func Example_endpoints() {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.Exec(`CREATE TABLE shop AS SELECT n AS shop_id, NULL::timestamptz AS closed_at
		FROM generate_series(1, 4) n`)
	must(err)
	const hangs, busy, gone, fine = 1, 2, 3, 4
	release, answered, hanging := make(chan struct{}), make(chan struct{}, 100), make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/1":
			hanging <- struct{}{}
			<-release
			return
		case "/2":
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(http.StatusTooManyRequests)
		case "/3":
			w.WriteHeader(http.StatusGone)
		}
		answered <- struct{}{}
	}))
	defer server.Close()
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		for _, shop := range []int64{hangs, hangs, hangs, hangs, busy, gone, fine, fine, fine, fine} {
			if err := tellShop(ctx, tx, ShopCall{ShopID: shop}); err != nil {
				return err
			}
		}
		return nil
	}))
	reg := handlers.New()
	callShops(reg, func(_ context.Context, shopID int64) (string, error) {
		return fmt.Sprintf("%s/%d", server.URL, shopID), nil
	})
	r, err := relay.New(db, reg, relay.Config{Workers: 2, OnDead: closeShops(db), Logger: discard()})
	must(err)
	must(r.Start(ctx))
	for range 6 {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
	fmt.Println("answers of the other shops, without an end:", ctx.Err() == nil, "calls that hang:", len(hanging))
	close(release)
	for n := 0; n != 1 && ctx.Err() == nil; {
		must(db.QueryRowContext(ctx, `SELECT count(*) FROM outbox.task`).Scan(&n))
	}
	must(r.Stop(ctx))
	var attempt, closed int
	var lastError string
	var soon bool
	must(db.QueryRowContext(ctx, `SELECT attempt, last_error, run_at > now() + interval '67 min' FROM outbox.task`).
		Scan(&attempt, &lastError, &soon))
	fmt.Println("the busy shop:", attempt, "attempts used,", lastError+",", "later than 67 minutes:", soon)
	must(db.QueryRowContext(ctx, `SELECT shop_id FROM shop WHERE closed_at IS NOT NULL`).Scan(&closed))
	fmt.Println("closed: shop", closed)
	// Output:
	// answers of the other shops, without an end: true calls that hang: 1
	// the busy shop: 0 attempts used, retry after 1h0m0s: 429 Too Many Requests, later than 67 minutes: false
	// closed: shop 3
}

type Order struct{ ID int64 }

var (
	PayOrder  = outbox.NewTaskType[Order]("PAY_ORDER")
	ShipOrder = outbox.NewTaskType[Order]("SHIP_ORDER")
	TellBuyer = outbox.NewTaskType[Order]("TELL_BUYER")
)

// payOrders registers a Leased handler, as a payment leaves the database.
func payOrders(reg *handlers.Registry, pay func(ctx context.Context, orderID int64, key string) error) {
	handlers.Leased(reg, PayOrder, func(ctx context.Context, task *outbox.Task[Order]) error {
		if err := pay(ctx, task.Payload.ID, task.Key()); err != nil {
			return err
		}
		return task.Complete(ctx, func(tx *sql.Tx) error {
			if err := setState(ctx, tx, task.Payload.ID, "paid"); err != nil {
				return err
			}
			_, err := ShipOrder.Enqueue(ctx, tx, task.Payload)
			return err
		})
	})
}

// shipOrder is a Tx handler.
func shipOrder(ctx context.Context, tx *sql.Tx, task *outbox.Task[Order]) error {
	if err := setState(ctx, tx, task.Payload.ID, "shipped"); err != nil {
		return err
	}
	_, err := TellBuyer.Enqueue(ctx, tx, task.Payload)
	return err
}

func setState(ctx context.Context, tx *sql.Tx, orderID int64, state string) error {
	_, err := tx.ExecContext(ctx, `UPDATE shop_order SET state = $2 WHERE order_id = $1`, orderID, state)
	return err
}

// The second step fails until it is a dead letter, and is redriven. The first step ran once.
func Example_steps() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.Exec(`CREATE TABLE shop_order AS SELECT 7::bigint AS order_id, 'placed' AS state`)
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := PayOrder.Enqueue(ctx, tx, Order{ID: 7})
		return err
	}))
	state := func() (s string) {
		must(db.QueryRow(`SELECT state FROM shop_order`).Scan(&s))
		return s
	}
	broken := true
	reg := handlers.New()
	payOrders(reg, func(_ context.Context, orderID int64, _ string) error {
		fmt.Println("pay order", orderID)
		return nil
	})
	handlers.Tx(reg, ShipOrder, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Order]) error {
		fmt.Println("ship order", task.Payload.ID, "in attempt", task.Attempt)
		err := shipOrder(ctx, tx, task)
		if broken {
			return errors.New("no parcel is left")
		}
		return err
	}, handlers.Backoff(atOnceAgain), handlers.NoJitter(), handlers.MaxAttempts(2))
	handlers.Leased(reg, TellBuyer, func(_ context.Context, task *outbox.Task[Order]) error {
		fmt.Println("tell the buyer of order", task.Payload.ID)
		return nil
	})
	runDue(ctx, db, reg)
	fmt.Println("the order is", state())
	broken = false
	client, err := admin.New(db, admin.Config{})
	must(err)
	_, err = client.Redrive(ctx, admin.Filter{Type: "SHIP_ORDER"}, admin.Bulk{})
	must(err)
	runDue(ctx, db, reg)
	fmt.Println("the order is", state())
	// Output:
	// pay order 7
	// ship order 7 in attempt 1
	// ship order 7 in attempt 2
	// the order is paid
	// ship order 7 in attempt 1
	// tell the buyer of order 7
	// the order is shipped
}

type PrintPage struct{ BookID, Page int64 }

var (
	Print = outbox.NewTaskType[PrintPage]("PRINT_PAGE")
	Bind  = outbox.NewTaskType[int64]("BIND_BOOK")
)

// printPage is a Tx handler. The last page of a book enqueues the next step.
func printPage(ctx context.Context, tx *sql.Tx, task *outbox.Task[PrintPage]) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO printed (book_id, page) VALUES ($1, $2)`,
		task.Payload.BookID, task.Payload.Page); err != nil {
		return err
	}
	var left int
	err := tx.QueryRowContext(ctx, `UPDATE book SET pages_left = pages_left - 1 WHERE book_id = $1
		RETURNING pages_left`, task.Payload.BookID).Scan(&left)
	if err != nil || left > 0 {
		return err
	}
	_, err = Bind.Enqueue(ctx, tx, task.Payload.BookID)
	return err
}

// Pages are printed at the same time, and each fails once after its writes. The book is bound once,
// with all of its pages.
func Example_fanIn() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.Exec(`CREATE TABLE printed (book_id bigint, page bigint);
		CREATE TABLE book AS SELECT 1 AS book_id, 40 AS pages_left`)
	must(err)
	var tasks []outbox.TaskSpec
	for page := range int64(40) {
		tasks = append(tasks, Print.New(PrintPage{BookID: 1, Page: page}))
	}
	relaytest.EnqueueAll(db, tasks...)
	reg := handlers.New()
	handlers.Tx(reg, Print, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[PrintPage]) error {
		err := printPage(ctx, tx, task)
		if task.Attempt == 1 {
			return errors.New("the paper is stuck")
		}
		return err
	}, handlers.Backoff(atOnceAgain), handlers.NoJitter())
	handlers.Tx(reg, Bind, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[int64]) error {
		var n int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM printed WHERE book_id = $1`, task.Payload).Scan(&n)
		fmt.Println("bind book", task.Payload, "of", n, "pages")
		return err
	})
	r, err := relay.New(db, reg, relay.Config{Workers: 5, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	// Output: bind book 1 of 40 pages
}
