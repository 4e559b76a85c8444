package pgdb_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

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
