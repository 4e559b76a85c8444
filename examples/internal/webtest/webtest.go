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

// SignedIn tests an app whose dashboard is for ada with the password secret, and which counts the
// orders of a customer.
func SignedIn(t *testing.T, addr *string, run func(ctx context.Context, url string, out io.Writer) error) {
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
	for _, c := range []struct {
		path     string
		password string
		want     int
	}{
		{"/outbox/", "", 401}, {"/outbox/", "wrong", 401}, {"/outbox/dead", "", 401}, {"/outbox/", "secret", 200}, {"/outbox/dead", "secret", 200},
		{"/outbox/task?id=1", "secret", 404}, {"/elsewhere", "", 404},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+*addr+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.password != "" {
			req.SetBasicAuth("ada", c.password)
		}
		status := 0
		relaytest.Eventually(t, time.Minute, c.path, func() bool {
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return false // it does not serve yet
			}
			res.Body.Close()
			status = res.StatusCode
			return true
		})
		if status != c.want {
			t.Errorf("%s with the password %q: %d, want %d", c.path, c.password, status, c.want)
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
	relaytest.Eventually(t, time.Minute, "the order is counted", func() bool {
		var orders int
		return pool.QueryRow(`SELECT orders FROM customer WHERE email = 'ada@example.com'`).Scan(&orders) == nil && orders == 1
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}
