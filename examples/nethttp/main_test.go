package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/examples/internal/webtest"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestOrdersAreServedAndTheShutdownLosesNone(t *testing.T) {
	*addr = "127.0.0.1:0"
	p := webtest.Start(t, run)
	address, found := strings.CutPrefix(p.Line(), "serving ")
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
	if got := p.Line(); got != "mail to ada@example.com: your order 1" {
		t.Errorf("it printed %q", got)
	}
	order("", http.StatusInternalServerError, "could not be placed")

	// The connection ends within the commit: the app does not learn its outcome.
	p.DB.Do(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM
		pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER die AFTER INSERT ON shop_order DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		EXECUTE FUNCTION die()`)
	order("ada@example.com", http.StatusServiceUnavailable, "look whether it is there before you try again")
	p.DB.Do(t, `DROP TRIGGER die ON shop_order`)

	// A request that runs when the server stops is answered, and its task is there.
	unlock := p.DB.Hold(t, `LOCK TABLE shop_order`)
	answered, stopped := make(chan struct{}), make(chan []string, 1)
	go func() {
		defer close(answered)
		order("eve@example.com", http.StatusCreated, "order")
	}()
	relaytest.Eventually(t, time.Minute, "the request waits", func() bool {
		return p.DB.Int(t, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'shop_order'::regclass`) > 0
	})
	go func() { stopped <- p.Stop() }()
	u, err := url.Parse(address)
	relaytest.Must(err)
	relaytest.Eventually(t, time.Minute, "nobody listens", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	unlock()
	<-answered
	sent := <-stopped
	p.DB.Want(t, "2", `SELECT count(*) FROM shop_order`)
	if tasks := p.DB.Int(t, `SELECT count(*) FROM outbox.task`); tasks+len(sent) != 1 {
		t.Errorf("%d tasks, mails %q; want the order's mail sent, or to be sent by the next relay", tasks, sent)
	}
}
