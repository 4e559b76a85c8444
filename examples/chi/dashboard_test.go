package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

// The dashboard in chi's router, as docs/tools/dashboard.md has it.
func TestTheDashboardIsMounted(t *testing.T) {
	db, err := pgdb.Open(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	d, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox", Logger: slog.New(slog.DiscardHandler),
		Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.View, "" }})
	if err != nil {
		t.Fatal(err)
	}
	r := chi.NewRouter()
	r.Mount("/outbox", d)
	for path, want := range map[string]int{"/outbox": http.StatusMovedPermanently, "/outbox/": 200, "/outbox/dead": 200, "/outbox/task?id=1": 404, "/elsewhere": 404} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}
