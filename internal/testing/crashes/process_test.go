package crashes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func TestMain(m *testing.M) {
	child.Run(runRelay)
	relaytest.Main(m)
}

// config is given to a relay process.
type config struct {
	URL     string
	Workers int
}

func runRelay(ctx context.Context, c config) error {
	db, err := sql.Open(relaytest.DriverName(), c.URL)
	if err != nil {
		return err
	}
	side, err := sql.Open(relaytest.DriverName(), c.URL)
	if err != nil {
		return err
	}
	side.SetMaxOpenConns(3)
	r, err := relay.New(db, registry(side), relay.Config{Workers: c.Workers, PollInterval: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// fleet is a number of relay processes. A process that ends is declared dead and started again.
type fleet struct {
	db       *relaytest.Database
	workers  int
	once     bool // processes are not started again
	expiring bool // a process is dead when its heartbeat has run out

	log   relaytest.Records // of all processes
	mu    sync.Mutex
	alive map[string]*child.Process // by application_name
}

var processes atomic.Int64

// start starts n processes, which are killed at the end of the test.
func (f *fleet) start(t *testing.T, n int) {
	t.Helper()
	f.alive = map[string]*child.Process{}
	ctx, stop := context.WithCancel(context.Background())
	var seats sync.WaitGroup
	for range n {
		seats.Go(func() {
			for ctx.Err() == nil {
				if err := f.runOne(ctx); err != nil {
					t.Error(err)
					return
				}
				if f.once {
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		stop()
		seats.Wait()
		if t.Failed() {
			t.Logf("logs of the relays:\n%s", f.log.Tail())
		}
	})
}

// runOne runs a process until it ends, or until ctx does.
func (f *fleet) runOne(ctx context.Context) error {
	name := fmt.Sprint("relay-", processes.Add(1))
	u, err := url.Parse(f.db.URL)
	if err != nil {
		return err
	}
	query := u.Query()
	query.Set("application_name", name)
	u.RawQuery = query.Encode()
	through, err := pgtest.PoolURL(relaytest.DriverName(), u.String())
	if err != nil {
		return err
	}
	p, err := child.Start(config{through, f.workers}, &f.log)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = p.Kill() })()
	f.mu.Lock()
	f.alive[name] = p
	f.mu.Unlock()
	<-p.Ended
	f.mu.Lock()
	delete(f.alive, name)
	f.mu.Unlock()
	if exit := (*exec.ExitError)(nil); errors.As(p.Err, &exit) && exit.ExitCode() == 2 {
		return errors.New("a relay's process failed or panicked")
	}
	if f.expiring || ctx.Err() != nil {
		return nil
	}
	_, err = f.db.ExecContext(ctx, `UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 second'
		WHERE pid = $1`, p.Pid)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// running are the processes that live.
func (f *fleet) running() []*child.Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.alive))
}

// named is the process with an application_name, nil if it does not live.
func (f *fleet) named(name string) *child.Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[name]
}
