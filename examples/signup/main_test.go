package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
	"golang.org/x/crypto/bcrypt"
)

func TestMain(m *testing.M) {
	if isRelayChild() {
		os.Exit(relayChild(os.Stdin))
	}
	os.Exit(pgtest.Main(m))
}

// testApp is the app on a database of its own, with its parts in reach.
type testApp struct {
	*httptest.Server
	db    *database
	inbox *sink
	log   *safeBuffer
}

// newTestApp starts the app without a relay.
func newTestApp(t *testing.T) *testApp {
	t.Helper()
	a := &testApp{db: testDatabase(t), inbox: testSink(t), log: &safeBuffer{}}
	none := testTraces(t)
	a.Server = httptest.NewServer((&site{
		users: &users{db: a.db.DB, traces: none, hashCost: bcrypt.MinCost},
		tasks: &tasks{db: a.db.DB},
		sink:  a.inbox, traces: none,
		log: slog.New(slog.NewTextHandler(a.log, nil)),
	}).handler())
	t.Cleanup(a.Close)
	return a
}

func testTraces(t *testing.T) *traces {
	t.Helper()
	none, err := noTraces()
	if err != nil {
		t.Fatal(err)
	}
	return none
}

// startRelay runs a relay until the test ends.
func (a *testApp) startRelay(t *testing.T) {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(a.log, nil))
	r, err := relay.New(a.db.DB, newRegistry(a.db.DB, testMailer(t, a.inbox.address()), logger),
		relay.Config{ListenDSN: a.db.url, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("relay: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", a.log)
		}
	})
}

// count returns the rows of a table.
func (a *testApp) count(t *testing.T, table string) int {
	t.Helper()
	var n int
	if err := a.db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func testDatabase(t *testing.T) *database {
	t.Helper()
	db, err := openDatabase(t.Context(), pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func testSink(t *testing.T) *sink {
	t.Helper()
	s, err := newSink(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testMailer(t *testing.T, address string) *mailer {
	t.Helper()
	m, err := newMailer(address)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// answer is a response that was read.
type answer struct {
	*http.Response
	body string
}

// do sends a request and follows no redirect.
func do(t *testing.T, method, url, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res, string(text)}
}

// eventually polls until ok says so.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// safeBuffer is a bytes.Buffer for several goroutines.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
