package main

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/child"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) {
	child.Run(runChild)
	os.Exit(pgtest.Main(m))
}

// app is the whole app, as main starts it.
type app struct {
	url string
	db  *sql.DB
}

func start(t *testing.T) *app {
	t.Helper()
	dsn := pgtest.Database(t)
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, dsn, "127.0.0.1:0", write)
		write.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatalf("it printed %q: %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()
	return &app{strings.TrimSpace(strings.TrimPrefix(line, "open ")), openDatabase(t, dsn)}
}

func openDatabase(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := devdb.Open(t.Context(), dsn, tables)
	relaytest.Must(err)
	t.Cleanup(func() { db.Close() })
	return db
}

// number returns what a query counts.
func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// send sends a form if there is one, follows redirects, and returns the status and the body.
func send(t *testing.T, url, form string, header ...string) (status int, body string) {
	t.Helper()
	method := http.MethodGet
	if form != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(form))
	relaytest.Must(err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	relaytest.Must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	relaytest.Must(err)
	return res.StatusCode, string(text)
}

// awaitText polls until the page at url has the text.
func awaitText(t *testing.T, url, want string) {
	t.Helper()
	body := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s has no %q:\n%s", url, want, body)
		}
	}()
	relaytest.Eventually(t, time.Minute, want, func() bool {
		_, body = send(t, url, "")
		return strings.Contains(body, want)
	})
}
