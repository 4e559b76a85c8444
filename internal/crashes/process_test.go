package crashes_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
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

// childEnv in the environment makes a test binary a relay process, as its value, a childConfig,
// says.
const childEnv = "OUTBOX_TEST_CHILD"

type childConfig struct {
	URL     string
	Program string
	Workers int
}

// runChild runs one of the programs and ends the process, if start or a fleet started this process
// for that. TestMain calls it first.
func runChild(programs map[string]program) {
	if config := os.Getenv(childEnv); config != "" {
		fmt.Fprintln(os.Stderr, work(config, programs))
		os.Exit(2)
	}
}

func work(config string, programs map[string]program) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test is gone
	}()
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
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
	*os.Process
	Name  string // its application_name
	Log   *relaytest.Records
	Ended chan struct{} // closed when it has ended and was waited for
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

var processes struct {
	sync.Mutex
	n int
}

func newProcess(db *relaytest.Database, name string, workers int) (*process, error) {
	processes.Lock()
	processes.n++
	p := &process{Name: fmt.Sprintf("relay-%d", processes.n), Log: &relaytest.Records{}, Ended: make(chan struct{})}
	processes.Unlock()
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
	config, err := json.Marshal(childConfig{through, name, workers})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	// The race detector lets a process that calls os.Exit work on for a second, unless told not to.
	cmd.Env = append(os.Environ(), childEnv+"="+string(config), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	stdin, err := cmd.StdinPipe() // stays open for as long as this process lives
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.Process = cmd.Process
	go func() {
		_ = cmd.Wait()
		_ = stdin.Close()
		close(p.Ended)
	}()
	return p, nil
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
