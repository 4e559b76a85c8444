package relay_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// childEnv in the environment makes this test binary a relay process, as its value, a childConfig, says. TestMain
// looks for it.
const childEnv = "OUTBOX_TEST_CHILD"

type childConfig struct {
	URL     string
	Program string // of programs
	Workers int
}

// programs are the registries of relay processes. side is a pool apart from the relay's, for what a handler says to the
// test whatever becomes of its transaction.
var programs = map[string]func(side *sql.DB) *handlers.Registry{
	"effects": effects,
	"poison":  poison,
	"gated":   gated,
}

func child(config string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test is gone
	}()
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	db, err := sql.Open(driverName(), c.URL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	side, _ := sql.Open(driverName(), c.URL)
	side.SetMaxOpenConns(3)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r, err := relay.New(db, programs[c.Program](side), relay.Config{Workers: c.Workers, PollInterval: 100 * time.Millisecond, Logger: log})
	if err == nil {
		err = r.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	return 2
}

// process is a relay in a process of its own, which is killed at the end of the test.
type process struct {
	*os.Process
	name  string // its application_name
	log   *records
	ended chan struct{} // closed when it has ended and was waited for
}

func startProcess(t testing.TB, db *database, program string, workers int) *process {
	t.Helper()
	p, err := newProcess(db, program, workers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", p.name, tail(p.log.String()))
		}
	})
	return p
}

var processes struct {
	sync.Mutex
	n int
}

func newProcess(db *database, program string, workers int) (*process, error) {
	processes.Lock()
	processes.n++
	p := &process{name: fmt.Sprintf("relay-%d", processes.n), log: &records{}, ended: make(chan struct{})}
	processes.Unlock()
	u, err := url.Parse(db.url)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("application_name", p.name)
	u.RawQuery = query.Encode()
	config, err := json.Marshal(childConfig{u.String(), program, workers})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	// The race detector lets a process that calls os.Exit work on for a second, unless told not to.
	cmd.Env = append(os.Environ(), childEnv+"="+string(config), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = p.log, p.log
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
		close(p.ended)
	}()
	return p, nil
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.Kill()
	<-p.ended
}

// fleet is n relay processes. Each is started again when it ends, if restart is set.
type fleet struct {
	t       testing.TB
	db      *database
	program string
	workers int
	restart bool
	hasten  bool // declare relays dead as soon as their process is, instead of when their heartbeat runs out

	mu      sync.Mutex
	alive   []*process
	logs    []*records
	stopped bool
	wait    sync.WaitGroup
}

// start starts n processes, which are killed at the end of the test.
func (f *fleet) start(n int) {
	f.t.Helper()
	for range n {
		f.wait.Go(f.supervise)
	}
	f.t.Cleanup(func() {
		f.mu.Lock()
		f.stopped = true
		for _, p := range f.alive {
			_ = p.Kill()
		}
		f.mu.Unlock()
		f.wait.Wait()
		if f.t.Failed() {
			for _, log := range f.logs {
				f.t.Logf("log of a relay:\n%s", tail(log.String()))
			}
		}
	})
}

func (f *fleet) supervise() {
	for first := true; first || f.restart; first = false {
		f.mu.Lock()
		if f.stopped {
			f.mu.Unlock()
			return
		}
		p, err := newProcess(f.db, f.program, f.workers)
		if err != nil {
			f.t.Error(err)
			f.mu.Unlock()
			return
		}
		f.alive = append(f.alive, p)
		f.logs = append(f.logs, p.log)
		f.mu.Unlock()
		<-p.ended
		f.mu.Lock()
		for i, other := range f.alive {
			if other == p {
				f.alive = append(f.alive[:i], f.alive[i+1:]...)
				break
			}
		}
		f.mu.Unlock()
		if f.hasten {
			if err := declareDead(f.db, p); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// processes returns those that live.
func (f *fleet) processes() []*process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*process(nil), f.alive...)
}

// declareDead ends the lease of a process's relay.
func declareDead(db *database, p *process) error {
	_, err := db.ExecContext(context.Background(), `UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 second' WHERE pid = $1`, p.Pid)
	return err
}

var typePlain = outbox.NewTaskType[payload]("PLAIN")

// effects registers handlers of each kind that pass through the points of pointsSQL and write one effect, with more
// attempts than a test will need. That of the type PLAIN writes it on the side, as what leaves the database.
func effects(side *sql.DB) *handlers.Registry {
	reg := handlers.New()
	many := handlers.MaxAttempts(1000)
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		return pointed(ctx, tx, func() error { return txEffect(ctx, tx, task) })
	}, many)
	handlers.Batch(reg, typeBatch, 20, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		return pointed(ctx, tx, func() error { return batchEffect(ctx, tx, tasks) })
	}, many)
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error {
			return pointed(ctx, tx, func() error { return effect(ctx, tx, task.ID, task.Attempt) })
		})
	}, many)
	handlers.Leased(reg, typePlain, func(ctx context.Context, task *outbox.Task[payload]) error {
		_, err := side.ExecContext(ctx, `INSERT INTO effect (task_id, attempt) VALUES ($1, -1)`, task.ID)
		return err
	}, many)
	return reg
}

func pointed(ctx context.Context, tx outbox.Tx, write func() error) error {
	if _, err := tx.ExecContext(ctx, `SELECT stop_at('handler begun')`); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `SELECT stop_at('effect written')`)
	return err
}

// gated registers a Leased handler that tells of its start, waits for the gate, and then ends as a stale holder would;
// and a Tx handler with a short timeout that does the same after it wrote its effect.
func gated(side *sql.DB) *handlers.Registry {
	wait := func(task *outbox.Task[payload]) {
		_, _ = side.Exec(`INSERT INTO start (task_id, attempt) VALUES ($1, $2)`, task.ID, task.Attempt)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			var open bool
			if err := side.QueryRow(`SELECT open FROM gate`).Scan(&open); err == nil && open {
				return
			}
		}
	}
	reg := leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		wait(task)
		err := staleEnds[task.Payload.N%len(staleEnds)](ctx, task)
		_, _ = side.Exec(`INSERT INTO ending (task_id, lease_lost, cause) VALUES ($1, $2, $3)`, task.ID, errors.Is(err, outbox.ErrLeaseLost),
			errors.Is(context.Cause(ctx), outbox.ErrLeaseLost))
		return err
	})
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if err := txEffect(ctx, tx, task); err != nil {
			return err
		}
		wait(task)
		return nil
	}, handlers.Timeout(100*time.Millisecond))
	return reg
}

func newGatedDatabase(t *testing.T) *database {
	db := newDatabase(t)
	db.exec(t, `CREATE TABLE start (task_id bigint, attempt int, at timestamptz DEFAULT clock_timestamp());
		CREATE TABLE ending (task_id bigint, lease_lost boolean, cause boolean);
		CREATE TABLE gate (open boolean); INSERT INTO gate VALUES (false)`)
	return db
}
