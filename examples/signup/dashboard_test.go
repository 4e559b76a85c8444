package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestTheDashboardIsForThisMachineOnly(t *testing.T) {
	dashboard, err := newDashboard(openDatabase(t, pgtest.Database(t)))
	relaytest.Must(err)
	app := (&site{}).routes(dashboard)
	for _, tt := range []struct {
		client, host string
		status       int
	}{
		{"127.0.0.1:50000", "localhost:8080", http.StatusOK},
		{"[::1]:50000", "[::1]:8080", http.StatusOK},
		{"[::ffff:127.0.0.1]:50000", "localhost", http.StatusOK},
		{"192.0.2.1:50000", "localhost:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "elsewhere.example", http.StatusForbidden}, // a name that its owner has lead to 127.0.0.1
		{"127.0.0.1:50000", "localhost.elsewhere.example:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "", http.StatusForbidden},
		{"@", "localhost:8080", http.StatusForbidden}, // a Unix socket, as proxies use
	} {
		req := httptest.NewRequest(http.MethodGet, "/outbox/", nil)
		req.RemoteAddr, req.Host = tt.client, tt.host
		w := httptest.NewRecorder()
		app.ServeHTTP(w, req)
		if w.Code != tt.status {
			t.Errorf("from %s to %q: %d, want %d", tt.client, tt.host, w.Code, tt.status)
		}
	}
}
