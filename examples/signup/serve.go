package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/txoutbox/outbox/relay"
	"golang.org/x/crypto/bcrypt"
)

// serve runs the app until ctx ends. Then it stops from the outside in: no new requests, no new tasks, the
// mail server, the database.
func serve(ctx context.Context, cfg config, logger *slog.Logger, out io.Writer) (err error) {
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	db, err := openDatabase(ctx, cfg.databaseURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()

	mailServer := cfg.smtp
	var inbox *sink
	if mailServer == "" {
		if inbox, err = newSink(logger); err != nil {
			return err
		}
		defer inbox.close()
		mailServer = inbox.address()
	}
	m, err := newMailer(mailServer)
	if err != nil {
		return err
	}

	traces, err := newTraces(ctx, logger)
	if err != nil {
		return err
	}
	defer traces.stop()
	ops, err := newOperations(db.DB, logger)
	if err != nil {
		return err
	}
	reg := newRegistry(db.DB, m, logger)
	reg.Use(traces.Middleware())
	r, err := relay.New(db.DB, reg, relay.Config{ListenDSN: db.url, Logger: logger, Observers: []relay.Observer{ops.observer()}})
	if err != nil {
		return err
	}
	ops.health = r.Health
	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	relayDone := make(chan error, 1)
	go func() { relayDone <- r.Run(relayCtx) }()
	defer func() {
		stopRelay()
		err = errors.Join(err, <-relayDone)
	}()

	web := startWeb(listener, &site{
		users:      &users{db: db.DB, traces: traces, hashCost: cmp.Or(cfg.hashCost, bcrypt.DefaultCost)},
		tasks:      &tasks{db: db.DB},
		sink:       inbox,
		mailServer: cfg.smtp,
		ops:        ops,
		traces:     traces,
		log:        logger,
	}, logger)
	defer func() { err = errors.Join(err, web.stop()) }()
	fmt.Fprint(out, whereThingsAre(pageURL(listener.Addr()), db))

	select {
	case <-ctx.Done():
		return nil
	case <-web.done:
		return errors.New("the web server has stopped")
	case err := <-relayDone:
		relayDone <- err // joined above
		return errors.New("the relay has stopped")
	}
}

// whereThingsAre is what the app prints. The connection string has a password, so only that of a server of its own, which goes with it, is in it.
func whereThingsAre(url string, db *database) string {
	text := fmt.Sprintf("open %s\ndashboard at %[1]s/outbox/, for this machine only\nmetrics at %[1]s/metrics, readiness at %[1]s/healthz\n", url)
	if db.server != nil {
		text += fmt.Sprintf("command line: export OUTBOX_DATABASE_URL='%s'; go run ./cmd/outbox dead list\n", db.url)
	}
	return text
}

// webServer is a running http.Server.
type webServer struct {
	server *http.Server
	done   chan struct{} // closed when it serves no more
	err    error         // why; to be read once done is closed
}

func startWeb(listener net.Listener, s *site, logger *slog.Logger) *webServer {
	w := &webServer{done: make(chan struct{}), server: &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}}
	go func() {
		w.err = w.server.Serve(listener)
		close(w.done)
	}()
	return w
}

// stop lets the requests that run finish, for 10 s at most.
func (w *webServer) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := w.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, w.server.Close())
	}
	<-w.done
	if !errors.Is(w.err, http.ErrServerClosed) {
		err = errors.Join(err, w.err)
	}
	return err
}

// pageURL is where a browser on this machine finds the page.
func pageURL(addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}
