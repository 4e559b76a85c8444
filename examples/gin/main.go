// Gin is a web server on gin and database/sql with a relay in its process. Its dashboard is for
// users who have signed in. Each order has a receipt mailed, and is counted.
//
//	go run ./examples/postgres go run ./examples/gin [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names; examples/postgres starts one. The dashboard is
// at /outbox, for ada with the password secret.
package main

import (
	"context"
	"database/sql"
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

	"github.com/gin-gonic/gin"
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
			if _, err := countOrder.Enqueue(ctx, tx, email); err != nil {
				return err
			}
			_, err := sendReceipt.Enqueue(ctx, tx, email)
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

// run serves until ctx ends, and then stops the server before the relay.
func run(ctx context.Context, url string, out io.Writer) error {
	db, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return err
	}
	handler, err := routes(db)
	if err != nil {
		return err
	}
	r, err := relay.New(db, registry(out), relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	if err := r.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	server := &http.Server{Addr: *addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case <-ctx.Done(): // a signal
	case <-r.Done(): // it ended by itself: Stop returns why
	case err = <-failed:
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(limit))
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
