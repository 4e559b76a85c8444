// Package webtest tests the examples that are web servers.
package webtest

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// Page is a page of the app that is asked for as ada with a password, or without one.
type Page struct {
	Path, Password string
	Status         int
}

// Serves tests an app of package shop: its pages, and that an order's receipt is mailed. The
// dashboard is for ada with the password secret, or for all.
func Serves(t *testing.T, addr *string, run func(ctx context.Context, url string, out io.Writer) error, pages ...Page) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // for a port that is free
	if err != nil {
		t.Fatal(err)
	}
	*addr = listener.Addr().String()
	listener.Close()
	ctx, stop := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan error, 1)
	db := pgtest.Database(t)
	go func() { done <- run(ctx, db, write) }()
	pages = append(pages, Page{"/outbox/", "secret", 200}, Page{"/outbox/dead", "secret", 200},
		Page{"/outbox/task?id=1", "secret", 404}, Page{"/elsewhere", "", 404})
	for _, p := range pages {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+*addr+p.Path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p.Password != "" {
			req.SetBasicAuth("ada", p.Password)
		}
		status := 0
		relaytest.Eventually(t, time.Minute, p.Path, func() bool {
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return false // it does not serve yet
			}
			res.Body.Close()
			status = res.StatusCode
			return true
		})
		if status != p.Status {
			t.Errorf("%s with the password %q: %d, want %d", p.Path, p.Password, status, p.Status)
		}
	}
	res, err := http.PostForm("http://"+*addr+"/orders", url.Values{"email": {"ada@example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || res.StatusCode != http.StatusCreated || line != "mail to ada@example.com\n" {
		t.Errorf("POST: %s, and it printed %q, %v", res.Status, line, err)
	}
	pool, err := sql.Open("postgres", db)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	relaytest.Eventually(t, time.Minute, "no task is left", func() bool {
		var n int
		return pool.QueryRow(`SELECT count(*) FROM outbox.task`).Scan(&n) == nil && n == 0
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	*addr = "127.0.0.1:-1"
	if err := run(t.Context(), db, write); err == nil {
		t.Error("it served at no address")
	}
}
