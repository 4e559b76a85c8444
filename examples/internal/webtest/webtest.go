// Package webtest runs examples in tests.
package webtest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// Page is a page of the app that is asked for as ada with a password, or without one.
type Page struct {
	Path, Password string
	Status         int
}

// Address is an address of this machine with a port that is free.
func Address(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	return listener.Addr().String()
}

// Serves tests a shop: its pages, and that an order's receipt is mailed. The dashboard is for ada
// with the password secret, or for all.
func Serves(t *testing.T, addr *string, run func(ctx context.Context, url string, out io.Writer) error, pages ...Page) {
	t.Helper()
	*addr = Address(t)
	program := Start(t, run)
	pages = append(pages, Page{"/outbox/", "secret", 200}, Page{"/outbox/dead", "secret", 200},
		Page{"/outbox/task?id=1", "secret", 404}, Page{"/elsewhere", "", 404})
	for _, p := range pages {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+*addr+p.Path, nil)
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
	if line := program.Line(); res.StatusCode != http.StatusCreated || line != "mail to ada@example.com" {
		t.Errorf("POST: %s, and it printed %q", res.Status, line)
	}
	program.DB.Emptied(t, time.Minute)
	program.Stop()
	*addr = "127.0.0.1:-1"
	if err := run(t.Context(), pgtest.Database(t), io.Discard); err == nil {
		t.Error("it served at no address")
	}
}
