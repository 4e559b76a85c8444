package pgdb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	breaker "github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

func openPool(t testing.TB, url string, opts ...pgdb.Option) *sql.DB {
	t.Helper()
	db, err := pgdb.Open(url, opts...)
	relaytest.Must(err)
	t.Cleanup(func() { db.Close() })
	return db
}

// F24. lib/pq alone waits for ever here: the proxy's system acknowledges what it is sent.
func TestACallOnASilentConnectionEndsSoonAfterItsContext(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	p, url := relaytest.Through(t, pgtest.Database(t))
	pools := map[string]*sql.DB{"socket": openPool(t, url), "channel": openPool(t, url, pgdb.Dialer(tunnel))}
	tests := map[string]func(*testing.T){}
	for name, call := range map[string]func(ctx context.Context, tx *sql.Tx, token string) error{
		"arguments": func(ctx context.Context, tx *sql.Tx, token string) error {
			var one string
			return tx.QueryRowContext(ctx, `SELECT '`+token+`' || $1`, "one").Scan(&one)
		},
		"rows": func(ctx context.Context, tx *sql.Tx, token string) error {
			rows, err := tx.QueryContext(ctx, `SELECT repeat('x', 10000) FROM generate_series(1, 10000) -- `+token)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
	} {
		for _, how := range []breaker.How{breaker.SilenceRequest, breaker.SilenceReply} {
			for which, db := range pools {
				token := fmt.Sprint(which, " silence of ", name, how)
				tests[token] = func(t *testing.T) {
					tx, err := db.BeginTx(t.Context(), nil)
					relaytest.Must(err)
					p.Set(&breaker.Trap{Catches: breaker.Statement(token), How: how})
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					defer cancel()
					if err = call(ctx, tx, token); err == nil {
						t.Error("the call has succeeded")
					}
					if err := tx.Commit(); err == nil {
						t.Error("the transaction could be committed")
					}
					if err := db.PingContext(t.Context()); err != nil {
						t.Errorf("the pool does not work any more: %v", err)
					}
				}
			}
		}
	}
	relaytest.Together(t, tests)
}

func TestAConnectionThatNeverGetsReadyIsGivenUpWithTheContext(t *testing.T) {
	t.Parallel()
	p, url := relaytest.Through(t, pgtest.Database(t))
	p.Delay(time.Hour)
	for _, opts := range [][]pgdb.Option{nil, {pgdb.Dialer(tunnel)}} {
		db := openPool(t, url, opts...)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := db.PingContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
	}
}

// untilASessionSleeps is a context that ends once a session of the database is in pg_sleep.
func untilASessionSleeps(t testing.TB, address string) context.Context {
	t.Helper()
	watch := relaytest.Direct(t, address, "postgres")
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		defer cancel()
		var sleeps bool
		var err error
		for err == nil && !sleeps {
			err = watch.QueryRowContext(ctx, `SELECT count(*) > 0 FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&sleeps)
		}
	}()
	return ctx
}

// F27: the machine of the first host has lost its power, or its server takes connections and says
// nothing.
func TestASilentHostMakesWayForTheNext(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	to := pgtest.Database(t)
	u, err := url.Parse(to)
	relaytest.Must(err)
	silent, err := net.Listen("tcp4", "127.0.0.1:0") // accepts, by the system, and never answers
	relaytest.Must(err)
	defer silent.Close()
	password, _ := u.User.Password()
	db := openPool(t, fmt.Sprintf("host=127.0.0.1,%s port=%d,%s user=%s password=%s dbname=%s sslmode=disable",
		u.Hostname(), silent.Addr().(*net.TCPAddr).Port, u.Port(), u.User.Username(), password, u.Path[1:]))
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("got %v, want the second host", err)
	}
}

func TestAConnectionWhosePreparedStatementWasCancelledDoesNotGoBackToThePool(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	db := openPool(t, address)
	db.SetMaxOpenConns(1)
	sessions := &relaytest.Database{DB: db}
	before := sessions.Int(t, `SELECT pg_backend_pid()`)
	stmt, err := db.PrepareContext(t.Context(), `SELECT pg_sleep($1)`)
	relaytest.Must(err)
	defer stmt.Close()
	if _, err := stmt.ExecContext(untilASessionSleeps(t, address), 600); err == nil {
		t.Fatal("the statement was not cancelled")
	}
	if sessions.Int(t, `SELECT pg_backend_pid()`) == before {
		t.Error("the connection is used again, though its deadline stays")
	}
}

// A COMMIT that waits for a standby is given up by a cancel request, so that no backend is left
// waiting; and only while its connection is bounded.
func TestABoundedCommitEndsItsWaitForAStandby(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	admin := relaytest.Direct(t, server.URL(), "postgres")
	admin.Do(t, `CREATE TABLE t (a int)`)
	admin.Do(t, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	admin.Do(t, `SELECT pg_reload_conf()`)
	for admin.Text(t, `SHOW synchronous_standby_names`) != "nobody" {
	}
	admin.Do(t, `CHECKPOINT`) // it is the checkpointer whose reading of it counts
	db := openPool(t, server.URL())
	db.SetMaxOpenConns(1)
	commit := func(d time.Duration) <-chan error {
		conn, err := db.Conn(t.Context())
		if err == nil && d > 0 { // as relays do
			err = conn.Raw(func(c any) error { c.(interface{ BoundReplies(time.Duration) }).BoundReplies(d); return nil })
		}
		relaytest.Must(err)
		tx, err := conn.BeginTx(context.WithoutCancel(t.Context()), nil)
		relaytest.Must(err)
		if _, err := tx.Exec(`INSERT INTO t VALUES (1)`); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- tx.Commit()
			_ = conn.Close()
		}()
		return done
	}
	const waiting = `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`
	select {
	case <-commit(500 * time.Millisecond):
	case <-time.After(time.Minute):
		t.Fatal("the COMMIT waits on")
	}
	relaytest.Eventually(t, time.Minute, "no backend waits", func() bool { return admin.Int(t, waiting) == 0 })
	admin.Want(t, "1", `SELECT count(*) FROM t`)
	done := commit(0) // the app's, on a connection that may have been a relay's
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		select {
		case err := <-done:
			t.Fatalf("the app's COMMIT was given up: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	relaytest.Eventually(t, time.Minute, "its backend waits", func() bool { return admin.Int(t, waiting) == 1 })
	admin.Do(t, `ALTER SYSTEM SET synchronous_standby_names = ''`)
	admin.Do(t, `SELECT pg_reload_conf()`)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOpenIsLibPQsPool(t *testing.T) {
	t.Parallel()
	db := openPool(t, pgtest.Database(t))
	if _, err := db.Exec(`CREATE TABLE t (a bigint, b text); INSERT INTO t VALUES (1, 'one'), (2, NULL)`); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
	relaytest.Must(err)
	var level, readOnly, b string
	if err := errors.Join(tx.QueryRow(`SHOW transaction_isolation`).Scan(&level),
		tx.QueryRow(`SHOW transaction_read_only`).Scan(&readOnly),
		tx.QueryRow(`SELECT b FROM t WHERE a = $1`, 1).Scan(&b), tx.Commit()); err != nil || level != "serializable" ||
		readOnly != "on" || b != "one" {
		t.Errorf("got %q %q %q %v", level, readOnly, b, err)
	}
	stmt, err := db.Prepare(`SELECT count(*) FROM t WHERE a > $1`)
	relaytest.Must(err)
	defer stmt.Close()
	n := 0
	if err := stmt.QueryRow(1).Scan(&n); err != nil || n != 1 {
		t.Errorf("got %d %v, want 1", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := db.ExecContext(ctx, `SELECT pg_sleep(20)`); err == nil {
		t.Error("a statement that its context cancels went on to its end")
	}
}

func TestOpenRefusesWhatIsNoConnectionStringAndDoesNotShowIt(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://user:sesame@host:port/db", "password='sesame", "sesame",
		"password=sesame target_session_attrs=prefer-standby"} {
		if _, err := pgdb.Open(dsn); err == nil || strings.Contains(err.Error(), "sesame") ||
			strings.Contains(err.Error(), "connection failed") {
			t.Errorf("%q: got %v", dsn, err)
		}
	}
}

// tunnel dials connections without deadlines, as those through an SSH client are.
func tunnel(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return channel{conn}, nil
}

type channel struct{ net.Conn }

func (channel) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (channel) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (channel) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// The dialer makes each connection to a name that nobody else knows, and carries the cancel request.
func TestADialerMakesAllConnections(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	u, err := url.Parse(address)
	relaytest.Must(err)
	server := u.Host
	u.Host = "db.invalid:5432"
	var dialled atomic.Int64
	db := openPool(t, u.String(), pgdb.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		if network != "tcp" || address != "db.invalid:5432" {
			t.Errorf("it dials %s %s", network, address)
		}
		if end, limited := ctx.Deadline(); !limited || time.Until(end) > 8*time.Second {
			t.Errorf("the dial ends %v", end)
		}
		return tunnel(ctx, network, server)
	}))
	sessions := &relaytest.Database{DB: db}
	if sessions.Int(t, `SELECT 1`) != 1 || dialled.Load() != 1 {
		t.Errorf("%d connections", dialled.Load())
	}
	if _, err := db.ExecContext(untilASessionSleeps(t, address), `SELECT pg_sleep(600)`); err == nil {
		t.Error("a statement that its context cancels went on to its end")
	}
	if dialled.Load() != 2 {
		t.Errorf("%d connections, want one for the cancel request", dialled.Load())
	}
}

func TestADialerCostsNeitherTheProcessNorTheCaller(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	here, there := net.Pipe() // whose end comes too late
	for want, dial := range map[string]func() (net.Conn, error){
		"panic: oops":            func() (net.Conn, error) { panic("oops") },
		"ended the goroutine":    func() (net.Conn, error) { runtime.Goexit(); return nil, nil },
		"no route":               func() (net.Conn, error) { return nil, errors.New("no route") },
		"returned no connection": func() (net.Conn, error) { return nil, nil },
		"deadline exceeded":      func() (net.Conn, error) { <-hangs; return here, nil },
	} {
		db := openPool(t, "postgres://db.invalid/?sslmode=disable",
			pgdb.Dialer(func(context.Context, string, string) (net.Conn, error) { return dial() }))
		within := time.Minute
		if want == "deadline exceeded" {
			within = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if err := db.PingContext(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		cancel()
	}
	relaytest.Must(there.SetReadDeadline(time.Now().Add(time.Minute))) // a closed pipe takes none
	close(hangs)
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that came too late: %v, want its end", err)
	}
}

func TestNilOptionsAreRefused(t *testing.T) {
	t.Parallel()
	dsn := func(context.Context) (string, error) { return "", nil }
	_, noFunction := pgdb.OpenFunc(nil)
	_, noOption := pgdb.OpenFunc(dsn, pgdb.Dialer(tunnel), nil)
	_, noDialer := pgdb.Open("dbname=app", pgdb.Dialer(nil))
	for says, err := range map[string]error{"the DSN function is nil": noFunction, "Option 1 is nil": noOption,
		"Dialer: the function is nil": noDialer} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %s", err, says)
		}
	}
}

// A pool whose password is rotated goes on with the next one: by a function, or by a password file,
// which lib/pq reads for each connection.
func TestAPasswordMayChange(t *testing.T) {
	server := pgtest.Local(t, nil)
	admin := relaytest.Direct(t, server.URL(), "postgres")
	u, err := url.Parse(server.URL())
	relaytest.Must(err)
	file := filepath.Join(t.TempDir(), "pgpass")
	var password atomic.Value
	rotate := func(to string) {
		t.Helper()
		password.Store(to)
		relaytest.Must(os.WriteFile(file, []byte("*:*:*:rotated:"+to+"\n"), 0o600))
		admin.Do(t, `ALTER ROLE rotated PASSWORD '`+to+`'`)
	}
	admin.Do(t, `CREATE ROLE rotated LOGIN`)
	rotate("first")
	u.User = url.User("rotated")
	t.Setenv("PGPASSFILE", file)
	byFunction, err := pgdb.OpenFunc(func(context.Context) (string, error) {
		u := *u
		u.User = url.UserPassword("rotated", password.Load().(string))
		return u.String(), nil
	})
	relaytest.Must(err)
	defer byFunction.Close()
	pools := map[string]*sql.DB{"a function": byFunction, "a password file": openPool(t, u.String())}
	for _, to := range []string{"second", "third"} {
		for name, db := range pools {
			db.SetMaxIdleConns(-1)
			if err := db.PingContext(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		rotate(to)
	}
}

func TestAFunctionForTheDSNCostsNeitherTheProcessNorTheCaller(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	defer close(hangs)
	for want, f := range map[string]func() (string, error){
		"panic: oops":         func() (string, error) { panic("oops") },
		"ended the goroutine": func() (string, error) { runtime.Goexit(); return "", nil },
		"sealed":              func() (string, error) { return "", errors.New("sealed") },
		"deadline exceeded":   func() (string, error) { <-hangs; return "", nil },
		"not shown":           func() (string, error) { return "password='sesame", nil },
		"prefer-standby": func() (string, error) {
			return "password=sesame target_session_attrs=prefer-standby",
				nil
		},
	} {
		db, err := pgdb.OpenFunc(func(context.Context) (string, error) { return f() })
		relaytest.Must(err)
		within := time.Minute
		if want == "deadline exceeded" {
			within = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if err := db.PingContext(ctx); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "sesame") {
			t.Errorf("got %v, want %s", err, want)
		}
		cancel()
		db.Close()
	}
}
