// Echo is a web server on echo and sqlx with a relay in its process. Its dashboard is for users who
// have signed in. Each order has a receipt mailed, and is counted.
//
//	go run ./examples/postgres go run ./examples/echo [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names; examples/postgres starts one. The dashboard is
// at /outbox, for ada with the password secret.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

const tables = `CREATE TABLE IF NOT EXISTS shop_order (email text NOT NULL);
	CREATE TABLE IF NOT EXISTS customer (email text PRIMARY KEY, orders int NOT NULL)`

var ( // the payload is the customer's address
	countOrder  = outbox.NewTaskType[string]("COUNT_ORDER")
	sendReceipt = outbox.NewTaskType[string]("SEND_RECEIPT")
)

func registry(db *sqlx.DB, out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, countOrder, outbox.SqlxHandler(db, func(ctx context.Context, tx *sqlx.Tx,
		task *outbox.Task[string]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO customer AS c (email, orders) VALUES ($1, 1)
			ON CONFLICT (email) DO UPDATE SET orders = c.orders + 1`, task.Payload)
		return err
	}))
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[string]) error {
		_, err := fmt.Fprintf(out, "mail to %s\n", task.Payload)
		return err
	})
	return reg
}

type userKey struct{} // of the user's name in a request's context

// signedIn stands for the middleware of an app's sessions. It keeps the user in the request's
// context, where the dashboard finds it.
var signedIn = middleware.BasicAuth(func(user, password string, c echo.Context) (bool, error) {
	if user != "ada" || password != "secret" {
		return false, nil
	}
	req := c.Request()
	c.SetRequest(req.WithContext(context.WithValue(req.Context(), userKey{}, user)))
	return true, nil
})

func authorize(req *http.Request) dashboard.User {
	user, _ := req.Context().Value(userKey{}).(string)
	if user == "" {
		return dashboard.User{}
	}
	return dashboard.User{Name: user, Access: dashboard.AccessOperate}
}

func routes(db *sqlx.DB) (*echo.Echo, error) {
	board, err := dashboard.New(db.DB, dashboard.Config{BasePath: "/outbox", Authorize: authorize})
	if err != nil {
		return nil, err
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.Any("/outbox*", echo.WrapHandler(board), signedIn)
	e.POST("/orders", func(c echo.Context) error {
		ctx, email := c.Request().Context(), c.FormValue("email")
		err := outbox.SqlxInTx(ctx, db, func(tx *sqlx.Tx) error {
			if _, err := tx.NamedExecContext(ctx, `INSERT INTO shop_order (email) VALUES (:email)`,
				map[string]any{"email": email}); err != nil {
				return err
			}
			if _, err := countOrder.Enqueue(ctx, tx, email); err != nil {
				return err
			}
			_, err := sendReceipt.Enqueue(ctx, tx, email)
			return err
		})
		if err != nil {
			return err
		}
		return c.NoContent(http.StatusCreated)
	})
	return e, nil
}

// run is the order of an app's start and end: Start of the relay, Start of echo; Shutdown of echo,
// which waits for its requests; then Stop of the relay, which waits for its handlers.
func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil {
		return err
	}
	db := sqlx.NewDb(pool, "postgres")
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return err
	}
	e, err := routes(db)
	if err != nil {
		return err
	}
	r, err := relay.New(pool, registry(db, out), relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	if err := r.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- e.Start(*addr) }()
	select {
	case <-ctx.Done(): // a signal
	case <-r.Done(): // it ended by itself: Stop returns why
	case err = <-failed:
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, e.Shutdown(limit))
	return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
}

func main() {
	flag.Parse()
	url := os.Getenv("OUTBOX_DATABASE_URL")
	if url == "" {
		log.Fatal("set OUTBOX_DATABASE_URL; go run ./examples/postgres starts a database")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, url, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
