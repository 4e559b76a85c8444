// Nethttp is a web server on net/http with a relay in its process, and a shutdown that loses
// nothing.
//
//	go run ./examples/postgres go run ./examples/nethttp [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names; examples/postgres starts one. Ctrl-C or SIGTERM
// ends it.
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

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

type receipt struct {
	OrderID int64
	Email   string
}

var sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")

func routes(db *sql.DB) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, req *http.Request) {
		r := receipt{Email: req.FormValue("email")}
		err := outbox.InTx(req.Context(), db, func(tx *sql.Tx) error {
			if err := tx.QueryRowContext(req.Context(), `INSERT INTO shop_order (email) VALUES ($1) RETURNING order_id`,
				r.Email).Scan(&r.OrderID); err != nil {
				return err
			}
			_, err := sendReceipt.Enqueue(req.Context(), tx, r)
			return err
		})
		if err != nil {
			log.Printf("place an order: %v", err)
			status, text := http.StatusInternalServerError, "the order could not be placed"
			if errors.Is(err, outbox.ErrCommitUnknown) { // the order and its task are there, or neither is
				status, text = http.StatusServiceUnavailable, "the order may have been placed: look whether it is there before you try again"
			}
			http.Error(w, text, status)
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
		return err
	}, handlers.MaxRunningPerRelay(1))
	return reg
}

const tables = `CREATE TABLE IF NOT EXISTS shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	email text NOT NULL CHECK (email <> ''))`

// run serves until ctx ends, and then stops from the outside in: no new requests, no new tasks, the
// pools.
func run(ctx context.Context, url string, out io.Writer) error {
	db, err := pgdb.Open(url) // or sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil { // safe when many start at once
		return err
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
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
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "serving http://%s/orders\n", listener.Addr())
	server := &http.Server{Handler: routes(db), ReadHeaderTimeout: 5 * time.Second}

	if err := r.Start(context.WithoutCancel(ctx)); err != nil { // it stops after the server
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case <-ctx.Done(): // a signal
	case <-r.Done(): // it ended by itself: Stop returns why
	case err = <-failed:
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(limit))              // requests end, and what they enqueue is committed
	return errors.Join(err, r.Stop(context.WithoutCancel(ctx))) // it claims no more, and waits for the handlers that run
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
