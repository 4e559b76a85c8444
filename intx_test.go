package outbox_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/wake"
)

// helper is InTx or SqlxInTx over one of the drivers.
type helper struct {
	name, driver string
	inTx         func(ctx context.Context, db *sql.DB, fn func(outbox.Tx) error) error
}

func plain(ctx context.Context, db *sql.DB, fn func(outbox.Tx) error) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return fn(tx) })
}

func extended(ctx context.Context, db *sql.DB, fn func(outbox.Tx) error) error {
	return outbox.SqlxInTx(ctx, sqlx.NewDb(db, "postgres"), func(tx *sqlx.Tx) error { return fn(tx) })
}

// onEveryHelper runs a test with each helper; db's pool is the test's own.
func onEveryHelper(t *testing.T, test func(t *testing.T, h helper, d database, db *sql.DB)) {
	t.Helper()
	d := newDatabase(t)
	for _, h := range []helper{{"InTx_lib_pq", "postgres", plain}, {"InTx_pgx", "pgx", plain}, {"SqlxInTx_lib_pq", "postgres", extended}, {"SqlxInTx_pgx", "pgx", extended}} {
		t.Run(h.name, func(t *testing.T) { test(t, h, d, open(t, h.driver, d.url)) })
	}
}

// countWakes counts the calls of the relays of this process until the test ends.
// Tests that use it are not parallel: another test would wake the relays too.
func countWakes(t *testing.T, also func()) *atomic.Int64 {
	var n atomic.Int64
	t.Cleanup(wake.Register(func() { n.Add(1); also() }))
	return &n
}

func enqueue(ctx context.Context, tx outbox.Querier, name string) error {
	_, err := outbox.Enqueue(ctx, tx, name, 1)
	return err
}

func TestInTxCommitsAndThenWakesTheRelaysOfTheProcess(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		name, visible := newType(), -1
		wakes := countWakes(t, func() { visible = len(rows(t, d.db, name)) })
		if err := h.inTx(t.Context(), db, func(tx outbox.Tx) error { return enqueue(t.Context(), tx, name) }); err != nil {
			t.Fatal(err)
		}
		if wakes.Load() != 1 || visible != 1 {
			t.Errorf("got %d wake-ups that saw %d tasks, want 1 and 1", wakes.Load(), visible)
		}
	})
}

func TestInTxRollsBackWhateverEndsTheFunction(t *testing.T) {
	failed := errors.New("no")
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		wakes := countWakes(t, func() {})
		for about, end := range map[string]func() error{
			"error":  func() error { return failed },
			"panic":  func() error { panic(failed) },
			"Goexit": func() error { runtime.Goexit(); return nil },
		} {
			name, done := newType(), make(chan any, 1)
			go func() {
				var err any = "Goexit"
				defer func() {
					if p := recover(); p != nil {
						err = p
					}
					done <- err
				}()
				err = h.inTx(t.Context(), db, func(tx outbox.Tx) error {
					if err := enqueue(t.Context(), tx, name); err != nil {
						t.Error(err)
					}
					return end()
				})
			}()
			if got := <-done; got != failed && !(about == "Goexit" && got == about) {
				t.Errorf("%s: got %v, want it as it is", about, got)
			}
			if n := len(rows(t, d.db, name)); n != 0 {
				t.Errorf("%s: got %d tasks, want 0", about, n)
			}
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%s: %d connections are in use still", about, n)
			}
		}
		if wakes.Load() != 0 {
			t.Errorf("got %d wake-ups, want 0", wakes.Load())
		}
	})
}

func TestInTxRollsBackWhenItsContextEndsBeforeTheCommit(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		name := newType()
		ctx, cancel := context.WithCancel(t.Context())
		err := h.inTx(ctx, db, func(tx outbox.Tx) error {
			defer cancel()
			return enqueue(ctx, tx, name)
		})
		if err != context.Canceled {
			t.Errorf("got %v, want context.Canceled", err)
		}
		err = h.inTx(ctx, db, func(tx outbox.Tx) error {
			t.Error("called with a context that had ended")
			return nil
		})
		if err != context.Canceled {
			t.Errorf("got %v, want context.Canceled", err)
		}
		// A context that ended does not undo what is done with another one before the function returns.
		ctx, cancel = context.WithCancel(t.Context())
		err = h.inTx(ctx, db, func(tx outbox.Tx) error {
			cancel()
			return enqueue(t.Context(), tx, name)
		})
		if err != context.Canceled {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if n := len(rows(t, d.db, name)); n != 0 {
			t.Errorf("got %d tasks, want 0", n)
		}
	})
}

func TestInTxWaitsForAConnectionNoLongerThanItsContext(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		db.SetMaxOpenConns(1)
		held, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err = h.inTx(ctx, db, func(tx outbox.Tx) error {
			t.Error("called without a connection")
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want context.DeadlineExceeded", err)
		}
	})
}

func TestInTxReportsThatItCouldNotBegin(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, _ *sql.DB) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		nobody := withHost(t, d.url, l.Addr().String())
		l.Close()
		err = h.inTx(t.Context(), open(t, h.driver, nobody), func(outbox.Tx) error {
			t.Error("called without a transaction")
			return nil
		})
		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || !strings.HasPrefix(err.Error(), "outbox: begin: ") {
			t.Errorf("got %v, want an error of begin", err)
		}
	})
}

func TestInTxKnowsACommitThatSurelyFailed(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		exec(t, d.db, `CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY)`)
		exec(t, d.db, `CREATE TABLE IF NOT EXISTS child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
		wakes := countWakes(t, func() {})
		for about, statement := range map[string]string{
			"a deferred foreign key": `INSERT INTO child VALUES (1)`,
			"an error hidden before": `SELECT 1/0`,
		} {
			name := newType()
			err := h.inTx(t.Context(), db, func(tx outbox.Tx) error {
				if err := enqueue(t.Context(), tx, name); err != nil {
					return err
				}
				_, _ = tx.ExecContext(t.Context(), statement)
				return nil
			})
			if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || !strings.HasPrefix(err.Error(), "outbox: commit: ") {
				t.Errorf("%s: got %v, want a definite error of the commit", about, err)
			}
			if n := len(rows(t, d.db, name)); n != 0 {
				t.Errorf("%s: got %d tasks, want 0", about, n)
			}
		}
		if wakes.Load() != 0 {
			t.Errorf("got %d wake-ups, want 0", wakes.Load())
		}
	})
}

// F2: the connection fails around the COMMIT.
func TestInTxTellsWhenTheOutcomeOfTheCommitIsUnknown(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, _ *sql.DB) {
		for _, c := range []struct {
			about     string
			committed bool
		}{{"the reply is lost", true}, {"the request is lost", false}} {
			var p *proxy
			p = newProxy(t, d.url, func(forward func()) {
				if c.committed {
					p.dropReplies.Store(true)
					forward()
					<-p.dropped
				}
				p.cut()
			})
			wakes := countWakes(t, func() {})
			name, calls := newType(), 0
			err := h.inTx(t.Context(), open(t, h.driver, p.url), func(tx outbox.Tx) error {
				calls++
				return enqueue(t.Context(), tx, name)
			})
			if !errors.Is(err, outbox.ErrCommitUnknown) {
				t.Errorf("%s: got %v, want ErrCommitUnknown", c.about, err)
			}
			if got := len(rows(t, d.db, name)) == 1; got != c.committed {
				t.Errorf("%s: committed is %v, want %v", c.about, got, c.committed)
			}
			if calls != 1 || p.commits.Load() != 1 {
				t.Errorf("%s: got %d calls and %d commits, want 1 and 1", c.about, calls, p.commits.Load())
			}
			if wakes.Load() != 1 {
				t.Errorf("%s: got %d wake-ups, want 1, since there may be a task", c.about, wakes.Load())
			}
		}
	})
}

func TestInTxDoesNotCutACommitShortWhenItsContextEnds(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, _ *sql.DB) {
		name := newType()
		ctx, cancel := context.WithCancel(t.Context())
		p := newProxy(t, d.url, func(forward func()) {
			cancel()
			for range 20 { // round trips, in which a driver would act on the end of its context
				exec(t, d.db, `SELECT 1`)
			}
			forward()
		})
		err := h.inTx(ctx, open(t, h.driver, p.url), func(tx outbox.Tx) error { return enqueue(ctx, tx, name) })
		if err != nil || ctx.Err() == nil {
			t.Errorf("got %v, want nil although the context ended", err)
		}
		one(t, d.db, name)
	})
}

func withHost(t testing.TB, raw, host string) string {
	t.Helper()
	u, err := url.Parse(withParameter(t, raw, "sslmode", "disable"))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host
	return u.String()
}

// proxy stands between a driver and the server and knows a COMMIT when it passes.
type proxy struct {
	url         string
	onCommit    func(forward func()) // holds the COMMIT until forward is called
	commits     atomic.Int64
	questions   atomic.Int64 // messages that the client waits for the answer of
	dropReplies atomic.Bool
	dropped     chan struct{} // closed with the first reply that was dropped
	once        sync.Once

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, target string, onCommit func(forward func())) *proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{url: withHost(t, target, l.Addr().String()), onCommit: onCommit, dropped: make(chan struct{})}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); p.cut(); running.Wait() })
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", u.Host)
			if err != nil {
				client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			running.Go(func() { p.requests(client, server) })
			running.Go(func() { p.replies(client, server) })
		}
	})
	return p
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

// requests passes messages on: first one without a type, then type, length and text.
func (p *proxy) requests(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	for header := make([]byte, 4); ; header = make([]byte, 5) {
		if _, err := io.ReadFull(client, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[len(header)-4:])-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		if header[0] == 'Q' || header[0] == 'S' {
			p.questions.Add(1)
		}
		forward := func() { _, _ = server.Write(append(header, body...)) }
		if header[0] == 'Q' && strings.EqualFold(strings.TrimRight(string(body), "\x00;"), "commit") {
			p.commits.Add(1)
			p.onCommit(forward)
		} else {
			forward()
		}
	}
}

func (p *proxy) replies(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		if p.dropReplies.Load() {
			p.once.Do(func() { close(p.dropped) })
		} else if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}
