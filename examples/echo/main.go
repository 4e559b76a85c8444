// Echo is a web server on echo and sqlx with a relay in its process. Its dashboard is for users who
// have signed in. Its handlers are in examples/internal/shop.
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
	"flag"
	"io"
	"net/http"

	"github.com/jmoiron/sqlx"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/examples/internal/shop"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

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

func routes(pool *sql.DB) (http.Handler, error) {
	db := sqlx.NewDb(pool, "postgres")
	board, err := dashboard.New(pool, dashboard.Config{BasePath: "/outbox", Authorize: authorize})
	if err != nil {
		return nil, err
	}
	e := echo.New()
	e.Any("/outbox*", echo.WrapHandler(board), signedIn)
	e.POST("/orders", func(c echo.Context) error {
		ctx, email := c.Request().Context(), c.FormValue("email")
		err := outbox.SqlxInTx(ctx, db, func(tx *sqlx.Tx) error {
			if _, err := tx.NamedExecContext(ctx, `INSERT INTO shop_order (email) VALUES (:email)`,
				map[string]any{"email": email}); err != nil {
				return err
			}
			if _, err := shop.CountOrder.Enqueue(ctx, tx, email); err != nil {
				return err
			}
			_, err := shop.SendReceipt.Enqueue(ctx, tx, email)
			return err
		})
		if err != nil {
			return err
		}
		return c.NoContent(http.StatusCreated)
	})
	return e, nil
}

func run(ctx context.Context, url string, out io.Writer) error {
	return shop.Serve(ctx, url, *addr, out, routes)
}

func main() { devdb.Main(run) }
