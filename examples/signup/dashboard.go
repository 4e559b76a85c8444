package main

import (
	"database/sql"
	"net"
	"net/http"
	"net/netip"

	"github.com/txoutbox/outbox/dashboard"
)

func newDashboard(db *sql.DB) (http.Handler, error) {
	return dashboard.New(db, dashboard.Config{BasePath: "/outbox", Authorize: fromThisMachine})
}

// fromThisMachine lets browsers on this machine do everything, and nobody else anything: this app
// has no administrators. An app that has some asks its own session instead. It does not go by
// addresses: behind a proxy all requests come from the proxy.
//
// It looks at the name of the host as well: another site's name may lead to 127.0.0.1, and its
// pages are of the same origin then.
func fromThisMachine(r *http.Request) dashboard.User {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !client.Addr().Unmap().IsLoopback() || !loopbackHost(r.Host) {
		return dashboard.User{}
	}
	return dashboard.User{Name: "somebody on this machine", Access: dashboard.AccessViewPayloads | dashboard.AccessOperate}
}

func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}
