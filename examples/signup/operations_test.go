package main

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func newTestOperations(t *testing.T, db *database) http.Handler {
	t.Helper()
	ops, err := newOperations(db.DB, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ops.health = func() error { return errors.New("no relay") }
	return (&site{users: &users{db: db.DB}, tasks: &tasks{db: db.DB}, ops: ops, traces: testTraces(t), log: slog.New(slog.DiscardHandler)}).handler()
}

func TestTheDashboardIsForThisMachineOnly(t *testing.T) {
	app := newTestOperations(t, testDatabase(t))
	for _, tt := range []struct {
		client, host string
		status       int
	}{
		{"127.0.0.1:50000", "localhost:8080", http.StatusOK},
		{"127.0.0.1:50000", "127.0.0.1:8080", http.StatusOK},
		{"[::1]:50000", "localhost", http.StatusOK},
		{"[::1]:50000", "[::1]:8080", http.StatusOK},
		{"[::ffff:127.0.0.1]:50000", "localhost:8080", http.StatusOK},
		{"192.0.2.1:50000", "localhost:8080", http.StatusForbidden},
		{"[2001:db8::1]:50000", "localhost:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "elsewhere.example", http.StatusForbidden}, // a name that its owner has lead to 127.0.0.1
		{"127.0.0.1:50000", "localhost.elsewhere.example:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "192.0.2.1:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "", http.StatusForbidden},
		{"@", "localhost:8080", http.StatusForbidden}, // a Unix socket, as proxies use
	} {
		for _, path := range []string{"/outbox/", "/outbox/dead", "/outbox/task?id=1&payload=show"} {
			req := httptest.NewRequest(http.MethodGet, path, nil)
			req.RemoteAddr, req.Host = tt.client, tt.host
			w := httptest.NewRecorder()
			app.ServeHTTP(w, req)
			want := tt.status
			if want == http.StatusOK && strings.Contains(path, "task?") {
				want = http.StatusNotFound // there is none
			}
			if w.Code != want {
				t.Errorf("%s from %s to %q: %d, want %d", path, tt.client, tt.host, w.Code, want)
			}
		}
	}
}

// The dashboard's content policy is its own, as the app's does not let its icon be loaded; the app's protection is before it.
func TestTheDashboardBesideTheAppsOwnMiddleware(t *testing.T) {
	app := newTestOperations(t, testDatabase(t))
	send := func(method, path string, header ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, "http://localhost"+path, nil)
		req.RemoteAddr = "127.0.0.1:50000"
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		app.ServeHTTP(w, req)
		return w
	}
	policies := send(http.MethodGet, "/outbox/").Header().Values("Content-Security-Policy")
	if len(policies) != 1 || policies[0] == contentPolicy || !strings.Contains(policies[0], "img-src 'self'") {
		t.Errorf("the dashboard's policies are %q, want one, with its images", policies)
	}
	if got := send(http.MethodGet, "/").Header().Get("Content-Security-Policy"); got != contentPolicy {
		t.Errorf("the page's policy is %q", got)
	}
	for _, path := range []string{"/outbox/redrive", "/outbox/pause", "/outbox/settings"} {
		if got := send(http.MethodPost, path, "Sec-Fetch-Site", "cross-site").Code; got != http.StatusForbidden {
			t.Errorf("%s by a page of another site: %d, want 403", path, got)
		}
		if got := send(http.MethodPost, path, "Sec-Fetch-Site", "same-origin").Code; got == http.StatusForbidden {
			t.Errorf("%s by a page of its own: 403", path)
		}
	}
}

func TestReadinessIsTheRelays(t *testing.T) {
	app := newTestOperations(t, testDatabase(t))
	w := httptest.NewRecorder()
	app.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no relay") {
		t.Errorf("without a relay it answers %d %s", w.Code, w.Body)
	}
}

// Without operations or an inbox of its own the app has neither pages nor links for them.
func TestAppWithoutOperations(t *testing.T) {
	db := testDatabase(t)
	app := httptest.NewServer((&site{users: &users{db: db.DB}, tasks: &tasks{db: db.DB}, mailServer: "mail.example:25", traces: testTraces(t), log: slog.New(slog.DiscardHandler)}).handler())
	defer app.Close()
	page := do(t, http.MethodGet, app.URL, "").body
	for _, path := range []string{"/outbox/", "/metrics", "/healthz", "/mailboxes"} {
		if strings.Contains(page, `"`+path+`"`) {
			t.Errorf("the page leads to %s", path)
		}
		if res := do(t, http.MethodGet, app.URL+path, ""); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}
