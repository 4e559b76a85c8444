// Chi is a web server on chi with a relay in its process and the dashboard in its router.
//
//	go run ./examples/chi [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own. The dashboard is
// at /outbox. A shutdown that loses no request is in examples/nethttp.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

var sendReceipt = outbox.NewTaskType[string]("SEND_RECEIPT")

func routes(db *sql.DB) (http.Handler, error) {
	board, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox",
		Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.View, "" }}) // an app asks its session
	if err != nil {
		return nil, err
	}
	mux := chi.NewRouter()
	mux.Mount("/outbox", board)
	mux.Post("/orders", func(w http.ResponseWriter, req *http.Request) {
		ctx, email := req.Context(), req.FormValue("email")
		err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO shop_order (email) VALUES ($1)`, email); err != nil {
				return err
			}
			_, err := sendReceipt.Enqueue(ctx, tx, email)
			return err
		})
		if err != nil {
			http.Error(w, "the order could not be placed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	return mux, nil
}

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[string]) error {
		_, err := fmt.Fprintf(out, "mail to %s\n", task.Payload)
		return err
	})
	return reg
}

const tables = `CREATE TABLE IF NOT EXISTS shop_order (email text NOT NULL)`

func run(ctx context.Context, url string, out io.Writer) error {
	db, err := devdb.Open(ctx, url, tables)
	if err != nil {
		return err
	}
	defer db.Close()
	r, err := relay.New(db, registry(out), relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	mux, err := routes(db)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	server := &http.Server{Addr: *addr, Handler: mux}
	go func() { stop(server.ListenAndServe()) }() // the relay ends with it
	err = r.Run(ctx)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, server.Close())
}

func main() { devdb.Main(run) }
