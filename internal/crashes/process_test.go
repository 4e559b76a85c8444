package crashes_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/child"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// program is what a relay process runs.
type program struct {
	// Registry makes the handlers. side is a pool apart from the relay's, for what a handler says
	// to the test whatever becomes of its transaction.
	Registry  func(side *sql.DB) *handlers.Registry
	Schedules relay.Schedules
}

type childConfig struct {
	URL     string
	Program string
	Workers int
}

// runRelay is what a relay process does.
func runRelay(c childConfig) error {
	db, err := sql.Open(relaytest.DriverName(), c.URL)
	if err != nil {
		return err
	}
	side, err := sql.Open(relaytest.DriverName(), c.URL)
	if err != nil {
		return err
	}
	side.SetMaxOpenConns(3)
	p := programs[c.Program]
	r, err := relay.New(db, p.Registry(side), relay.Config{Workers: c.Workers, PollInterval: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})), Schedules: p.Schedules})
	if err != nil {
		return err
	}
	return r.Run(context.Background())
}

// process is a relay in a process of its own.
type process struct {
	*child.Process
	Name string // its application_name
	Log  *relaytest.Records
}

// start starts a relay process, which is killed at the end of the test.
func start(t testing.TB, db *relaytest.Database, name string, workers int) *process {
	t.Helper()
	p, err := newProcess(db, name, workers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill9()
		if t.Failed() {
			t.Logf("log of %s:\n%s", p.Name, p.Log.Tail())
		}
	})
	return p
}

var processes atomic.Int64

func newProcess(db *relaytest.Database, name string, workers int) (*process, error) {
	p := &process{Name: fmt.Sprintf("relay-%d", processes.Add(1)), Log: &relaytest.Records{}}
	u, err := url.Parse(db.URL)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("application_name", p.Name)
	u.RawQuery = query.Encode()
	through, err := pgtest.PoolURL(relaytest.DriverName(), u.String())
	if err != nil {
		return nil, err
	}
	p.Process, err = child.Start(childConfig{through, name, workers}, p.Log)
	return p, err
}

// Kill9 kills the process with SIGKILL, where there are signals, and waits for its end.
func (p *process) Kill9() {
	_ = p.Kill()
	<-p.Ended
}

// declareDead ends the lease of a process's relay, so that nobody waits for it to run out.
func declareDead(db *relaytest.Database, p *process) error {
	const expire = `UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 second' WHERE pid = $1`
	_, err := db.ExecContext(context.Background(), expire, p.Pid)
	return err
}
