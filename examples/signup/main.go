// Signup is a small web app with an outbox. A sign-up creates a user and, in the same transaction,
// two tasks. A relay in the same process grants the user a credit, exactly once, and sends a mail.
//
//	go run ./examples/signup [-addr :8080]
//	go run ./examples/signup -demo
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own; with -demo
// always a new database. Its mail service is its own, and the page shows the mails. The dashboard is
// at /outbox/, for browsers on this machine. A mail to full.example is refused, and becomes a dead
// letter: empty the mailboxes on the page, and redrive it in the dashboard, or by the command line,
// cmd/outbox.
//
// An app writes signup.go (it enqueues), tasks.go (the handlers), serve in main.go (the relay) and
// dashboard.go. The other files have the page, a stand-in for a mail service (sink.go), and the
// demo, which kills relays while users sign up, and counts what came of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/relay"
)

var (
	addr    = flag.String("addr", ":8080", "serve HTTP at this `address`")
	hasDemo = flag.Bool("demo", false, "sign up 1,000 users while relays are killed, print what came of it, and exit")
)

func main() {
	child.Run(runChild)
	devdb.Start(func(ctx context.Context) error {
		if *hasDemo {
			fmt.Printf("the demo has a database of its own, dropped at its end; %s is not used\n", devdb.Variable)
			return devdb.WithOwn(ctx, func(url string) error {
				return demo{signUps: 1000, kills: 12, relays: 3, lasting: 18 * time.Second}.run(ctx, url, os.Stdout)
			})
		}
		return devdb.With(ctx, func(url string) error { return serve(ctx, url, *addr, os.Stdout) })
	})
}

// serve runs the app until ctx ends. Then it stops from the outside in: no new requests, no new
// tasks, the mail service, the database.
func serve(ctx context.Context, url, addr string, out io.Writer) error {
	db, err := devdb.Open(ctx, url, tables)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(25)
	inbox, err := startSink()
	if err != nil {
		return err
	}
	defer inbox.close()
	r, err := relay.New(db, newRegistry(db, inbox.url), relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	dashboard, err := newDashboard(db)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	printPlaces(out, url, listener)

	server := &http.Server{Handler: (&site{db, inbox}).routes(dashboard), ReadHeaderTimeout: 5 * time.Second}
	if err := r.Start(context.WithoutCancel(ctx)); err != nil { // it stops after the server
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	go func() { stop(server.Serve(listener)) }()
	<-ctx.Done() // a signal, or the server has failed
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = cause
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(limit))
	return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
}

// printPlaces leaves out the connection string of a database that is not the app's own, as it has a
// password.
func printPlaces(out io.Writer, url string, listener net.Listener) {
	page := fmt.Sprintf("http://localhost:%d", listener.Addr().(*net.TCPAddr).Port)
	fmt.Fprintf(out, "open %s\ndashboard at %[1]s/outbox/, for this machine only\n", page)
	if os.Getenv(devdb.Variable) == "" {
		fmt.Fprintf(out, "command line: %s='%s' go run ./cmd/outbox dead list\n", devdb.Variable, url)
	}
}
