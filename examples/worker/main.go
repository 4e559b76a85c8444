// Worker is a process that runs tasks and serves nothing but its health, for deployments where the
// web app only enqueues.
//
//	go run ./examples/postgres go run ./examples/worker [-addr :8081] [-enqueue N]
//	curl -i localhost:8081/readyz
//
// It uses the database that OUTBOX_DATABASE_URL names; examples/postgres starts one. On SIGTERM or
// Ctrl-C it claims no more, waits for its handlers, and exits with 0. A second signal ends it at once,
// and other workers take its tasks over.
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

var (
	addr    = flag.String("addr", ":8081", "serve the health at this `address`")
	enqueue = flag.Int("enqueue", 0, "enqueue `N` tasks first, to see something")
)

type thumbnail struct{ ImageID int }

var makeThumbnail = outbox.NewTaskType[thumbnail]("MAKE_THUMBNAIL")

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	reg.Use(handlers.Log(nil)) // at Debug a record for each task that is done; the relay logs the others
	handlers.Leased(reg, makeThumbnail, func(ctx context.Context, task *outbox.Task[thumbnail]) error {
		_, err := fmt.Fprintf(out, "thumbnail of image %d\n", task.Payload.ImageID)
		return err
	}, handlers.Timeout(time.Minute))
	return reg
}

// health answers probes: /livez as long as the process serves, /readyz while the relay works. It
// goes on by itself after an outage, so a worker that is not ready need not be killed.
func health(r *relay.Relay) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.Health(); err != nil { // asks nobody, so it costs nothing; it names no host
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// enqueueSome stands for the web app, which enqueues in the transaction of its own rows.
func enqueueSome(tx *sql.Tx) error {
	for i := range *enqueue {
		if _, err := makeThumbnail.Enqueue(context.Background(), tx, thumbnail{i + 1}); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, url string, out io.Writer) error {
	db, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	const workers = 50
	db.SetMaxOpenConns(12) // enough for any number of workers if all handlers are Leased; else workers + 2
	if err := outbox.InTx(ctx, db, enqueueSome); err != nil {
		return err
	}
	r, err := relay.New(db, registry(out), relay.Config{Workers: workers, ListenDSN: url, DrainTimeout: 25 * time.Second})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: health(r), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }() // where it fails the probes fail
	fmt.Fprintf(out, "health at http://%s/readyz\n", listener.Addr())
	err = r.Run(ctx) // until a signal; before that only if the schema is not the one of this binary
	return errors.Join(err, server.Close())
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
