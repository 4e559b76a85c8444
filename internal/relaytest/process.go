package relaytest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// Program is what a relay process runs.
type Program struct {
	// Registry makes the handlers. side is a pool apart from the relay's, for what a handler says to the test whatever becomes
	// of its transaction.
	Registry  func(side *sql.DB) *handlers.Registry
	Schedules relay.Schedules
}

// childEnv in the environment makes a test binary a relay process, as its value, a childConfig, says.
const childEnv = "OUTBOX_TEST_CHILD"

type childConfig struct {
	URL     string
	Program string
	Workers int
}

// Child runs one of the programs and ends the process, if that is what this process was started for by [Start] or a [Fleet].
// A package's TestMain calls it first.
func Child(programs map[string]Program) {
	if config := os.Getenv(childEnv); config != "" {
		fmt.Fprintln(os.Stderr, work(config, programs))
		os.Exit(2)
	}
}

func work(config string, programs map[string]Program) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test is gone
	}()
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	db, err := sql.Open(DriverName(), c.URL)
	if err != nil {
		return err
	}
	side, err := sql.Open(DriverName(), c.URL)
	if err != nil {
		return err
	}
	side.SetMaxOpenConns(3)
	program := programs[c.Program]
	r, err := relay.New(db, program.Registry(side), relay.Config{Workers: c.Workers, PollInterval: 100 * time.Millisecond,
		Logger: logger(os.Stderr), Schedules: program.Schedules})
	if err != nil {
		return err
	}
	return r.Run(context.Background())
}

// Process is a relay in a process of its own.
type Process struct {
	*os.Process
	Name  string // its application_name
	Log   *Records
	Ended chan struct{} // closed when it has ended and was waited for
}

// Start starts a relay process, which is killed at the end of the test.
func Start(t testing.TB, db *Database, program string, workers int) *Process {
	t.Helper()
	p, err := newProcess(db, program, workers)
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

func newProcess(db *Database, program string, workers int) (*Process, error) {
	processes.Lock()
	processes.n++
	p := &Process{Name: fmt.Sprintf("relay-%d", processes.n), Log: &Records{}, Ended: make(chan struct{})}
	processes.Unlock()
	u, err := url.Parse(db.URL)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("application_name", p.Name)
	u.RawQuery = query.Encode()
	through, err := pgtest.PoolURL(DriverName(), u.String())
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(childConfig{through, program, workers})
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
func (p *Process) Kill9() {
	_ = p.Kill()
	<-p.Ended
}

// DeclareDead ends the lease of a process's relay, so that nobody waits for it to run out.
func (db *Database) DeclareDead(p *Process) error {
	_, err := db.ExecContext(context.Background(), `UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 second' WHERE pid = $1`, p.Pid)
	return err
}
