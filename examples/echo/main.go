// Echo is a web server on echo and sqlx with a relay in its process. Its dashboard is for users who
// have signed in.
//
//	go run ./examples/echo [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own. The dashboard is
// at /outbox, for ada with the password secret.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"

	"github.com/jmoiron/sqlx"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

var (
	sendReceipt = outbox.NewTaskType[string]("SEND_RECEIPT")
	countOrder  = outbox.NewTaskType[string]("COUNT_ORDER")
)

type userKey struct{} // of the user's name in a request's context

// signedIn stands for the middleware of an app's sessions. What it keeps in echo's context, it keeps
// in the request's as well, where the dashboard finds it.
var signedIn = middleware.BasicAuth(func(user, password string, c echo.Context) (bool, error) {
	if user != "ada" || password != "secret" {
		return false, nil
	}
	req := c.Request()
	c.SetRequest(req.WithContext(context.WithValue(req.Context(), userKey{}, user)))
	return true, nil
})

func authorize(req *http.Request) (dashboard.Access, string) {
	user, _ := req.Context().Value(userKey{}).(string)
	if user == "" {
		return 0, ""
	}
	return dashboard.Operate, user
}

func routes(db *sqlx.DB) (*echo.Echo, error) {
	board, err := dashboard.New(db.DB, dashboard.Config{BasePath: "/outbox", Authorize: authorize})
	if err != nil {
		return nil, err
	}
	e := echo.New()
	e.Any("/outbox*", echo.WrapHandler(board), signedIn)
	e.POST("/orders", func(c echo.Context) error {
		ctx, email := c.Request().Context(), c.FormValue("email")
		err := outbox.SqlxInTx(ctx, db, func(tx *sqlx.Tx) error {
			if _, err := tx.NamedExecContext(ctx, `INSERT INTO shop_order (email) VALUES (:email)`, map[string]any{"email": email}); err != nil {
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

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, countOrder, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[string]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO customer AS c (email, orders) VALUES ($1, 1)
			ON CONFLICT (email) DO UPDATE SET orders = c.orders + 1`, task.Payload)
		return err
	})
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[string]) error {
		_, err := fmt.Fprintf(out, "mail to %s\n", task.Payload)
		return err
	})
	return reg
}

const tables = `CREATE TABLE IF NOT EXISTS shop_order (email text NOT NULL);
	CREATE TABLE IF NOT EXISTS customer (email text PRIMARY KEY, orders int NOT NULL)`

func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := devdb.Open(ctx, url, tables)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := relay.New(pool, registry(out), relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	e, err := routes(sqlx.NewDb(pool, "postgres"))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	server := &http.Server{Addr: *addr, Handler: e}
	go func() { stop(server.ListenAndServe()) }() // the relay ends with it
	err = r.Run(ctx)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, server.Close())
}

func main() { devdb.Main(run) }
