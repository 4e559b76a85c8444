package main

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/outboxprom"
	"github.com/txoutbox/outbox/relay"
)

// operations is what those who run the app find in it: the dashboard at /outbox/, metrics at /metrics, readiness at /healthz.
type operations struct {
	dashboard http.Handler
	collector *outboxprom.Collector
	metrics   http.Handler
	health    func() error // relay.Relay.Health
}

// newOperations is of the outbox in db, whose pool it shares with the app. Its health is to be set.
func newOperations(db *sql.DB, logger *slog.Logger) (*operations, error) {
	board, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox", Authorize: fromThisMachine, Logger: logger})
	if err != nil {
		return nil, err
	}
	collector, err := outboxprom.New(outboxprom.Config{DB: db})
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		return nil, err
	}
	return &operations{dashboard: board, collector: collector, metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}, nil
}

// observer tells the metrics what a relay does.
func (o *operations) observer() relay.Observer { return o.collector.Observer() }

func (o *operations) mount(mux *http.ServeMux) {
	mux.Handle("/outbox/", o.dashboard) // it has a content policy of its own, which replaces the app's
	mux.Handle("GET /metrics", o.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// fromThisMachine lets browsers on this machine do everything, and nobody else anything: this app has users, but no administrators. An
// app that has some asks its own session instead, returns rights by role and the name of who is signed in, and nothing (0, "") for others.
// It does not go by addresses: behind a proxy all requests come from the proxy.
//
// The name of the host is looked at as well, as another site's name may lead to 127.0.0.1, and its pages are of the same origin then.
func fromThisMachine(r *http.Request) (dashboard.Access, string) {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !client.Addr().Unmap().IsLoopback() || !loopbackHost(r.Host) {
		return 0, ""
	}
	return dashboard.ViewPayloads | dashboard.Operate, "somebody on this machine"
}

func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}
