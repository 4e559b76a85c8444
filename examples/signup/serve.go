package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/relay"
)

// serve runs the app until ctx ends. Then it stops from the outside in: no new requests, no new
// tasks, the database.
func serve(ctx context.Context, c childConfig) error {
	db, err := devdb.Open(ctx, c.URL, tables)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(25)
	r, err := relay.New(db, newRegistry(db, c.Mails), relay.Config{ListenDSN: c.URL})
	if err != nil {
		return err
	}
	dashboard, err := newDashboard(db)
	if err != nil {
		return err
	}
	site, err := newSite(db, c)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	printPlaces(c, listener)

	server := &http.Server{Handler: site.routes(dashboard), ReadHeaderTimeout: 5 * time.Second}
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
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(limit))
	return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
}

// printPlaces leaves out the connection string of a database that is not the app's own, as it has a
// password.
func printPlaces(c childConfig, listener net.Listener) {
	page := fmt.Sprintf("http://localhost:%d", listener.Addr().(*net.TCPAddr).Port)
	if c.Killed != 0 {
		fmt.Printf("process %d was killed; process %d serves %s\n", c.Killed, os.Getpid(), page)
		return
	}
	fmt.Printf("open %s\ndashboard at %[1]s/outbox/, for this machine only\n", page)
	if os.Getenv(devdb.Variable) == "" {
		fmt.Printf("command line: %s='%s' go run ./cmd/outbox dead list\n", devdb.Variable, c.URL)
	}
}
