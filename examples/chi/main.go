// Chi is a web server on chi with a relay in its process and the dashboard in its router. Each order
// has a receipt mailed.
//
//	go run ./examples/postgres go run ./examples/chi [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names; examples/postgres starts one. The dashboard is
// at /outbox.
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

	"github.com/go-chi/chi/v5"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

const tables = `CREATE TABLE IF NOT EXISTS shop_order (email text NOT NULL)`

var sendReceipt = outbox.NewTaskType[string]("SEND_RECEIPT") // the payload is the customer's address

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[string]) error {
		_, err := fmt.Fprintf(out, "mail to %s\n", task.Payload)
		return err
	})
	return reg
}

func routes(db *sql.DB) (http.Handler, error) {
	// An app asks its session.
	everybody := func(*http.Request) dashboard.User { return dashboard.User{Access: dashboard.AccessView} }
	board, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox", Authorize: everybody})
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
