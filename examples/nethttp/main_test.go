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

func TestOrdersAreServedAndTheShutdownLosesNone(t *testing.T) {
	database := pgtest.Database(t)
	db, err := pgdb.Open(database)
	relaytest.Must(err)
	defer db.Close()
	exec := func(query string) {
		t.Helper()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	*addr = "127.0.0.1:0"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, database, write)
		write.Close()
		done <- err
	}()
	lines := bufio.NewScanner(read)
	line := func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("it ended: %v", <-done)
		}
		return lines.Text()
	}
	address, found := strings.CutPrefix(line(), "serving ")
	if !found {
		t.Fatalf("it printed %q", address)
	}
	order := func(email string, status int, text string) {
		t.Helper()
		res, err := http.PostForm(address, url.Values{"email": {email}})
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != status ||
			!strings.Contains(string(body), text) {
			t.Errorf("an order is answered with %s %q, %v; want %d %q", res.Status, body, err, status, text)
		}
	}
	order("ada@example.com", http.StatusCreated, "order 1\n")
	if got := line(); got != "mail to ada@example.com: your order 1" {
		t.Errorf("it printed %q", got)
	}
	order("", http.StatusInternalServerError, "could not be placed")

	// The connection ends within the commit: the app does not learn its outcome.
	exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM
		pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER die AFTER INSERT ON shop_order DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		EXECUTE FUNCTION die()`)
	order("ada@example.com", http.StatusServiceUnavailable, "look whether it is there before you try again")
	exec(`DROP TRIGGER die ON shop_order`)

	// A request that runs when the server stops is answered, and its task is there.
	tx, err := db.BeginTx(t.Context(), nil)
	relaytest.Must(err)
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`LOCK TABLE shop_order`); err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		order("eve@example.com", http.StatusCreated, "order")
	}()
	relaytest.Eventually(t, time.Minute, "the request waits", func() (waits bool) {
		relaytest.Must(db.QueryRow(`SELECT EXISTS (SELECT FROM pg_locks
			WHERE NOT granted AND relation = 'shop_order'::regclass)`).Scan(&waits))
		return waits
	})
	stop()
	u, err := url.Parse(address)
	relaytest.Must(err)
	relaytest.Eventually(t, time.Minute, "nobody listens", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	relaytest.Must(tx.Commit()) // the lock is free
	<-answered
	var sent []string
	for lines.Scan() {
		sent = append(sent, lines.Text())
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	var orders, tasks int
	const left = `SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM outbox.task)`
	relaytest.Must(db.QueryRow(left).Scan(&orders, &tasks))
	if orders != 2 || tasks+len(sent) != 1 { // the next relay sends it, unless this one did
		t.Errorf("%d orders, %d tasks, mails %q; want an order more, and its mail sent or to be sent", orders, tasks, sent)
	}
}
