package pgbouncer

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestACancelRequestEndsItsConnectionBeforeThePooler(t *testing.T) {
	needs.Long(t)
	server, err := devpg.Open(t.Context(), t.Logf, devpg.WithLocal(), devpg.WithMemory())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFront(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer f.listener.Close()
	u.Host = f.listener.Addr().String()
	db, err := sql.Open("postgres", u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "SELECT pg_sleep(30)"); err == nil ||
		!strings.Contains(err.Error(), "due to user request") {
		t.Errorf("got %v, want the end of the statement by the cancel request", err)
	}
	if err := other.PingContext(t.Context()); err != nil {
		t.Errorf("another connection: %v", err)
	}
}
