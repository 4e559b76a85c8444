// Gin is a web server on gin and database/sql with a relay in its process. Its dashboard is for
// users who have signed in. Its handlers are in examples/internal/shop.
//
//	go run ./examples/gin [-addr :8080]
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

	"github.com/gin-gonic/gin"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/examples/internal/shop"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

type userKey struct{} // of the user's name in a request's context

// carryUser puts what gin's context has of the session into the request's, where the dashboard
// finds it.
func carryUser(c *gin.Context) {
	ctx := context.WithValue(c.Request.Context(), userKey{}, c.GetString(gin.AuthUserKey))
	c.Request = c.Request.WithContext(ctx)
}

func authorize(req *http.Request) dashboard.User {
	user, _ := req.Context().Value(userKey{}).(string)
	if user == "" {
		return dashboard.User{}
	}
	return dashboard.User{Name: user, Access: dashboard.AccessOperate}
}

func routes(db *sql.DB) (http.Handler, error) {
	board, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox", Authorize: authorize})
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.Use(gin.Recovery())
	router.Any("/outbox/*page", gin.BasicAuth(gin.Accounts{"ada": "secret"}), carryUser, gin.WrapH(board))
	router.POST("/orders", func(c *gin.Context) {
		ctx, email := c.Request.Context(), c.PostForm("email")
		err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO shop_order (email) VALUES ($1)`, email); err != nil {
				return err
			}
			if _, err := shop.CountOrder.Enqueue(ctx, tx, email); err != nil {
				return err
			}
			_, err := shop.SendReceipt.Enqueue(ctx, tx, email)
			return err
		})
		if err != nil {
			_ = c.AbortWithError(http.StatusInternalServerError, err)
			return
		}
		c.Status(http.StatusCreated)
	})
	return router, nil
}

func run(ctx context.Context, url string, out io.Writer) error {
	return shop.Serve(ctx, url, *addr, out, routes)
}

func main() { devdb.Main(run) }
