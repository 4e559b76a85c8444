package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAnOrderIsServedItsMailSentAndTheServerStops(t *testing.T) {
	s := start(t, pgtest.Database(t))
	if status, body := s.order(t, "ada@example.com"); status != http.StatusCreated || body != "order 1\n" {
		t.Errorf("an order: %d %q", status, body)
	}
	if got := s.line(t); got != "mail to ada@example.com: your order 1" {
		t.Errorf("it printed %q", got)
	}
	if status, body := s.order(t, ""); status != http.StatusInternalServerError {
		t.Errorf("an order without an address: %d %q", status, body)
	}
	s.stop()
	s.end(t)
	if _, err := http.Get(s.address); err == nil {
		t.Error("it still serves")
	}
}

func TestAnOrderWhoseCommitGotNoAnswerIsNotCalledFailed(t *testing.T) {
	database := pgtest.Database(t)
	s := start(t, database)
	db, err := pgdb.Open(database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// The connection ends within the commit: nobody is told what became of it.
	if _, err := db.Exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER die AFTER INSERT ON shop_order DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`); err != nil {
		t.Fatal(err)
	}
	if status, body := s.order(t, "ada@example.com"); status != http.StatusServiceUnavailable || !strings.Contains(body, "look whether it is there before you try again") {
		t.Errorf("an order: %d %q", status, body)
	}
	s.stop()
	s.end(t)
}

func TestARequestThatRunsIsAnsweredAndItsTaskIsThere(t *testing.T) {
	database := pgtest.Database(t)
	s := start(t, database)
	db, err := pgdb.Open(database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`LOCK TABLE shop_order`); err != nil {
		t.Fatal(err)
	}
	status := make(chan int, 1)
	go func() {
		got, _ := s.order(t, "ada@example.com")
		status <- got
	}()
	relaytest.Eventually(t, time.Minute, "the request waits", func() (waits bool) {
		if err := db.QueryRow(`SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'shop_order'::regclass)`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	s.stop()
	u, err := url.Parse(s.address)
	if err != nil {
		t.Fatal(err)
	}
	relaytest.Eventually(t, time.Minute, "nobody listens", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if err := tx.Commit(); err != nil { // the lock is free
		t.Fatal(err)
	}
	if got := <-status; got != http.StatusCreated {
		t.Errorf("the request was answered with %d", got)
	}
	sent := s.end(t)
	var orders, tasks int
	if err := db.QueryRow(`SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM outbox.task)`).Scan(&orders, &tasks); err != nil {
		t.Fatal(err)
	}
	if orders != 1 || tasks+len(sent) != 1 { // the next relay sends it, unless this one did
		t.Errorf("%d orders, %d tasks, mails %q; want an order, and its mail sent or to be sent", orders, tasks, sent)
	}
}

// server is a run of the program.
type server struct {
	address string
	stop    context.CancelFunc
	lines   *bufio.Scanner
	done    chan error
}

func start(t *testing.T, database string) *server {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	read, write := io.Pipe()
	s := &server{stop: stop, lines: bufio.NewScanner(read), done: make(chan error, 1)}
	go func() {
		err := run(ctx, database, "127.0.0.1:0", write)
		write.Close()
		s.done <- err
	}()
	address, found := strings.CutPrefix(s.line(t), "serving ")
	if !found {
		t.Fatalf("it printed %q", address)
	}
	s.address = address
	return s
}

// order posts an order. It returns status 0 if there is no answer.
func (s *server) order(t *testing.T, email string) (status int, body string) {
	t.Helper()
	res, err := http.PostForm(s.address, url.Values{"email": {email}})
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(text)
}

func (s *server) line(t *testing.T) string {
	t.Helper()
	if !s.lines.Scan() {
		t.Fatalf("it ended: %v", <-s.done)
	}
	return s.lines.Text()
}

// end waits for the end, and returns what was printed until then.
func (s *server) end(t *testing.T) (lines []string) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	for s.lines.Scan() {
		lines = append(lines, s.lines.Text())
	}
	if err := <-s.done; err != nil {
		t.Errorf("run: %v", err)
	}
	return lines
}
