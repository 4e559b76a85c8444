package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/dashboard"
	outboxprom "github.com/txoutbox/outbox/telemetry/prom"
)

type serveFlags struct {
	listen            string
	readOnly, payload bool
	origins           []string
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use: "serve", Short: "serve the dashboard and metrics", Args: cobra.NoArgs,
		Example: "  outbox serve\n  read -rs OUTBOX_SERVE_PASSWORD && export OUTBOX_SERVE_PASSWORD\n" +
			"  outbox serve -read-only",
		Long: `Serves the dashboard at /, and metrics of the database for Prometheus at /metrics. Both need a
password: OUTBOX_SERVE_PASSWORD or, on a terminal, a random password that it prints. The user name
may be any: it is the actor of the audit log. The server speaks HTTP: beyond this machine put a proxy
with TLS before it. If the proxy changes the header Host, give the origin that browsers show by
--trusted-origin. Payloads are shown with --payload only. Ctrl-C ends it.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.serve(c.Context(), f) },
	}
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8080", "host and port")
	c.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing")
	c.Flags().StringArrayVar(&f.origins, "trusted-origin", nil,
		"origin that browsers show, like https://outbox.example.com")
	payloadFlag(c, &f.payload)
	return c
}

func (a *app) serve(ctx context.Context, f serveFlags) error {
	_, _, err := net.SplitHostPort(f.listen)
	if err == nil {
		_, err = net.ResolveTCPAddr("tcp", f.listen)
	}
	if err != nil {
		return usage("--listen %q: use a host and a port, like 127.0.0.1:8080", f.listen)
	}
	password := os.Getenv("OUTBOX_SERVE_PASSWORD")
	made := password == ""
	if made {
		if _, ok := isTerminal(a.err); !ok { // other outputs may be kept in logs
			return usage("OUTBOX_SERVE_PASSWORD is not set, and there is no terminal to print a password on")
		}
		password = rand.Text()
	}
	if err := a.open(); err != nil {
		return err
	}
	a.db.SetMaxOpenConns(8)
	handler, err := a.handler(f, password)
	if err != nil {
		return err
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(a.err, "outbox: http://%s\n", l.Addr())
	if made {
		fmt.Fprintf(a.err, "outbox: any name, password %s\n", password)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		fmt.Fprintln(a.err, "outbox: the password travels in plain text: put a proxy with TLS before it")
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return server.Close()
}

// handler is the dashboard and the metrics behind the password.
func (a *app) handler(f serveFlags, password string) (http.Handler, error) {
	access := dashboard.AccessOperate
	if f.payload {
		access |= dashboard.AccessViewPayloads
	}
	d, err := dashboard.New(a.db, dashboard.Config{
		Schema: a.schema, ReadOnly: f.readOnly, TrustedOrigins: f.origins, Logger: slog.New(slog.NewTextHandler(a.err, nil)),
		Authorize: func(r *http.Request) dashboard.User {
			name, _, _ := r.BasicAuth()
			if name == "" {
				name = a.actorName()
			}
			return dashboard.User{Name: name, Access: access}
		},
	})
	if err != nil {
		return nil, usage("--trusted-origin: write the origin that browsers show: https (or http), the host, " +
			"and the port if it is not the default; in lower case, without a path")
	}
	collector, err := outboxprom.New(outboxprom.Config{DB: a.db, Schema: a.schema})
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	mux := http.NewServeMux()
	mux.Handle("/", d)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return behindPassword(password, mux), nil
}

func behindPassword(password string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(password))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		if got := sha256.Sum256([]byte(given)); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="outbox", charset="UTF-8"`)
			http.Error(w, "a password is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
