package schema

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	programs "github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
)

func TestAnotherProcessIsFaster(t *testing.T) {
	later := second("SELECT 1")
	for name, c := range map[string]struct {
		start, mine []string
		before      string // the statement that comes too late
		want        error
	}{
		"with the same version": {[]string{first()}, []string{first(), later}, "LOCK TABLE", nil},
		"from the beginning":    {nil, []string{first(), later}, "-- schema: create", nil},
		"with a newer version":  {nil, []string{first()}, "-- schema: create", ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			if c.start != nil {
				migrate(t, open(t, url), files(c.start...))
			}
			db, w := watched(t, url)
			faster := open(t, url)
			late := false
			w.rewrite = func(q string) string {
				if strings.HasPrefix(q, c.before) && !late {
					late = true
					if err := Migrate(t.Context(), faster, files(first(), later)); err != nil {
						t.Error(err)
					}
				}
				return q
			}
			if err := Migrate(t.Context(), db, files(c.mine...)); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := w.writes(); !late || strings.Contains(strings.Join(got, ""), "task") {
				t.Errorf("late: %v, got %q, want no migration", late, got)
			}
		})
	}
}

// locks are what others can hold while the second version is to be applied.
var locks = map[string]string{
	"reading the version": "LOCK TABLE outbox.migration IN ACCESS EXCLUSIVE MODE",
	"another migration":   "INSERT INTO outbox.migration (version) VALUES (3)",
	"a table in use":      "SELECT * FROM outbox.relay",
}

// At the second timeout, since the first try alone would pass without a retry, the other lets go or
// the context ends.
func TestMigrateWaitsForLocksInShortTriesUntilItsContextEnds(t *testing.T) {
	reason := errors.New("the test has seen enough")
	for name, lock := range locks {
		for _, ends := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ends), func(t *testing.T) {
				url := pgtest.Database(t)
				migrate(t, open(t, url), files(first()))
				release := begin(t, open(t, url), lock)
				db, w := watched(t, url)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var timeouts atomic.Int32
				w.done = func(_ string, err error) {
					if pgerr.Code(err) == "55P03" && timeouts.Add(1) == 2 {
						if ends {
							cancel(reason)
						} else {
							release()
						}
					}
				}
				err := Migrate(ctx, db, files(first(), second("SELECT 1")), LockTimeout(10*time.Millisecond))
				if got := timeouts.Load(); got < 2 || (err != nil) != ends {
					t.Errorf("got %v after %d lock timeouts, want 2 or more", err, got)
				}
				if ends {
					if !errors.Is(err, reason) || pgerr.Code(err) != "55P03" {
						t.Errorf("got %v, want the context's cause and the lock timeout", err)
					}
				} else if got := scan[int](t, db, "SELECT max(version) FROM outbox.migration"); got != 2 {
					t.Errorf("got version %d, want 2", got)
				}
				if got := db.Stats().InUse; got != 0 {
					t.Errorf("%d connections are still in use", got)
				}
			})
		}
	}
}

func TestMigrateInterruptsAStatementWhenItsContextEnds(t *testing.T) {
	db := migrated(t, files(first()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		// A sequence is the one thing that is seen outside of its transaction.
		done <- Migrate(ctx, db, files(first(), second("SELECT setval('outbox.wake', 42); SELECT pg_sleep(600)")))
	}()
	for scan[int](t, db, "SELECT last_value FROM outbox.wake") != 42 {
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
	if got := scan[int](t, db, "SELECT max(version) FROM outbox.migration"); got != 1 {
		t.Errorf("got version %d, want 1", got)
	}
}

func TestMigrateCommitsNothingAfterItsContextEnded(t *testing.T) {
	db, w := watched(t, pgtest.Database(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.done = func(q string, _ error) {
		if q == first() {
			cancel()
		}
	}
	if err := Migrate(ctx, db); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if err := Check(t.Context(), db); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
}

func TestMigrateGivesUpAfterAWhile(t *testing.T) {
	url := pgtest.Database(t)
	migrate(t, open(t, url), files(first()))
	begin(t, open(t, url), "SELECT * FROM outbox.relay")
	db := open(t, url)
	err := Migrate(t.Context(), db, files(first(), second("SELECT 1")), LockTimeout(10*time.Millisecond), patience(100*time.Millisecond))
	if pgerr.Code(err) != "55P03" || !strings.Contains(fmt.Sprint(err), "gave up after 100ms") {
		t.Errorf("got %v, want: gave up after 100ms, with the lock timeout", err)
	}
}

func patience(d time.Duration) Option { return option(func(s *settings) { s.patience = d }) }

func TestAnUnknownCommitIsLookedAfter(t *testing.T) {
	for name, how := range map[string]proxy.How{"committed": proxy.LoseReply, "not committed": proxy.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(pgtest.Database(t))
			noErr(t, err)
			p, err := proxy.New(u.Host)
			noErr(t, err)
			defer p.Close()
			u.Host = p.Address()
			var caught atomic.Int32
			p.Set(&proxy.Trap{Catches: proxy.Commit("UPDATE outbox.migration"), How: how, Then: func() { caught.Add(1) }})
			db := open(t, u.String(), "sslmode", "disable")
			migrate(t, db, files(first(), second("SELECT 1")), state("", ""))
			if got := scan[int](t, db, "SELECT count(*) FROM outbox.migration"); got != 2 || caught.Load() != 1 {
				t.Errorf("got %d versions after %d lost commits, want 2 after 1", got, caught.Load())
			}
		})
	}
}

func TestMigrateWaitsForAServerThatStarts(t *testing.T) {
	programs.CI(t)
	server := pgtest.Local(t, nil)
	noErr(t, server.Stop("immediate"))
	connector, err := pq.NewConnector(server.URL())
	noErr(t, err)
	refused := &refusals{Connector: connector, first: make(chan struct{})}
	db := sql.OpenDB(refused)
	defer db.Close()
	done := make(chan error, 1)
	go func() { done <- Migrate(t.Context(), db) }()
	select {
	case <-refused.first:
	case err := <-done:
		t.Fatalf("it did not meet the stopped server: %v", err)
	}
	noErr(t, server.Start(t.Context()))
	noErr(t, <-done)
}

// refusals closes first when a connection is refused.
type refusals struct {
	driver.Connector
	once  sync.Once
	first chan struct{}
}

func (r *refusals) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := r.Connector.Connect(ctx)
	if err != nil {
		r.once.Do(func() { close(r.first) })
	}
	return conn, err
}

func TestMigrateReturnsThoughTheDriverHangs(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	db := sql.OpenDB(hangingConnector{hang})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := Migrate(ctx, db, option(func(s *settings) { s.grace = time.Millisecond }))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the server does not answer") {
		t.Errorf("got %v, want: the server does not answer, with the deadline", err)
	}
}

type hangingConnector struct{ until chan struct{} }

func (h hangingConnector) Connect(context.Context) (driver.Conn, error) {
	<-h.until
	return nil, driver.ErrBadConn
}
func (h hangingConnector) Driver() driver.Driver { return nil }

type stateError string

func (s stateError) Error() string    { return string(s) }
func (s stateError) SQLState() string { return string(s) }

func TestWhatIsTriedAgain(t *testing.T) {
	refused := open(t, "postgres://127.0.0.1:1/nowhere?sslmode=disable").PingContext(t.Context())
	noHost := &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "databse"}}
	want := map[error]bool{nil: false, context.Canceled: false, driver.ErrBadConn: true, noHost: false, refused: true}
	for _, code := range []stateError{"55P03", "23505", "42P06", "42P07", "42710", "40P01", "40001", "XX000", "57P03", "57P01", "53300"} {
		want[fmt.Errorf("wrapped: %w", code)] = true
	}
	// Wrong password, no such database, permission, syntax, cancelled, read-only.
	for _, code := range []stateError{"28P01", "3D000", "42501", "42601", "57014", "25006"} {
		want[code] = false
	}
	for err, want := range want {
		if again(err) != want {
			t.Errorf("%v: it is tried again: %v, want %v", err, !want, want)
		}
	}
}
