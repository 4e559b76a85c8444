// Chi is a web server on chi with a relay in its process, and a shutdown that loses nothing.
//
//	go run ./examples/chi [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own. Ctrl-C or SIGTERM ends it.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type receipt struct {
	OrderID int64
	Email   string
}

var sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")

func routes(db *sql.DB) http.Handler {
	mux := chi.NewRouter()
	mux.Use(middleware.RequestID, middleware.Recoverer, middleware.Timeout(10*time.Second))
	mux.Post("/orders", func(w http.ResponseWriter, req *http.Request) {
		r := receipt{Email: req.FormValue("email")}
		err := outbox.InTx(req.Context(), db, func(tx *sql.Tx) error {
			if err := tx.QueryRowContext(req.Context(), `INSERT INTO shop_order (email) VALUES ($1) RETURNING order_id`, r.Email).Scan(&r.OrderID); err != nil {
				return err
			}
			_, err := sendReceipt.Enqueue(req.Context(), tx, r, outbox.Headers(map[string]string{"request": middleware.GetReqID(req.Context())}))
			return err
		})
		if errors.Is(err, outbox.ErrCommitUnknown) { // the order and its task are there, or neither is
			log.Printf("place an order: %v", err)
			http.Error(w, "the order may have been placed: look whether it is there before you try again", http.StatusServiceUnavailable)
			return
		}
		if err != nil {
			log.Printf("place an order: %v", err)
			http.Error(w, "the order could not be placed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d\n", r.OrderID)
	})
	return mux
}

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[receipt]) error {
		_, err := fmt.Fprintf(out, "mail to %s: your order %d\n", task.Payload.Email, task.Payload.OrderID)
		if err == nil && task.Headers["request"] == "" {
			err = errors.New("the task does not know its request")
		}
		return err
	}, handlers.MaxRunning(1))
	return reg
}

// run serves until ctx ends, and then stops from the outside in: no new requests, no new tasks, the pools.
func run(ctx context.Context, url, addr string, out io.Writer) error {
	db, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL CHECK (email <> ''))`); err != nil {
		return err
	}

	relayDB, err := pgdb.Open(url) // a pool of the relay's own: requests cannot take its connections, nor it theirs
	if err != nil {
		return err
	}
	defer relayDB.Close()
	relayDB.SetMaxOpenConns(12) // Workers + 2
	r, err := relay.New(relayDB, registry(out), relay.Config{
		ListenDSN:    url,              // so that other processes' tasks need not wait for a poll
		DrainTimeout: 20 * time.Second, // with the server's 5 s less than what the platform waits before it kills
	})
	if err != nil {
		return err
	}
	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx)) // it ends after the server
	defer stopRelay()
	relayed := make(chan error, 1)
	go func() { relayed <- r.Run(relayCtx) }()

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		stopRelay()
		return errors.Join(err, <-relayed)
	}
	fmt.Fprintf(out, "serving http://%s/orders\n", listener.Addr())
	server := &http.Server{Handler: routes(db), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	select {
	case <-ctx.Done():
	case err = <-served: // it should not end before ctx
		served <- http.ErrServerClosed
	case err = <-relayed: // nor should this: the schema is not the one of this binary
		relayed <- nil
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(stopping)) // requests end, and what they enqueue is committed
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	stopRelay() // it claims no more, and waits for the handlers that run
	return errors.Join(err, <-relayed)
}

func main() {
	addr := flag.String("addr", ":8080", "serve at this `address`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := devdb.With(ctx, func(url string) error { return run(ctx, url, *addr, os.Stdout) }); err != nil {
		log.Fatal(err)
	}
}
