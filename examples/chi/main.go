// Chi is a web server on chi with a relay in its process and the dashboard in its router.
//
//	go run ./examples/chi [-addr :8080]
//	curl -d email=ada@example.com localhost:8080/orders
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own. The dashboard is
// at /outbox. Its handlers are in examples/internal/shop.
package main

import (
	"context"
	"database/sql"
	"flag"
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/examples/internal/shop"
)

var addr = flag.String("addr", ":8080", "serve at this `address`")

func routes(db *sql.DB) (http.Handler, error) {
	board, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox",
		Authorize: func(*http.Request) dashboard.User { return dashboard.User{Access: dashboard.AccessView} }}) // an app asks its session
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
			_, err := shop.SendReceipt.Enqueue(ctx, tx, email)
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

func run(ctx context.Context, url string, out io.Writer) error {
	return shop.Serve(ctx, url, *addr, out, routes)
}

func main() { devdb.Main(run) }
