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

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/devpg"
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

// payload says what a task does.
type payload struct {
	Ms    int  // of work
	Kill  bool // it ends its process then
	Again int  // iterations after the first
}

// kinds are the kinds of relaytest.Register, by the type of their tasks. The effect of a PLAIN task
// is written on the side, as an effect outside of the database is.
var kinds = map[string]string{"TX": "tx", "BATCH": "batch", "LEASED": "complete", "PLAIN": "leased"}

// tables are what handlers write. Relay processes stop at named points while the test holds the
// point's lock.
const tables = `
CREATE TABLE done (task_id bigint, iteration int, attempt int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE start (task_id bigint, task_type text, attempt int, at timestamptz);
CREATE TABLE inside (task_type text, task_id bigint, pid int);
CREATE TABLE crowd (task_type text, n int);
CREATE TABLE dead (pid int);
CREATE FUNCTION stop_at(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('application_name') LIKE 'relay-%' THEN
    PERFORM pg_advisory_lock_shared(hashtext(name)), pg_advisory_unlock_shared(hashtext(name));
  END IF;
END $$;
CREATE FUNCTION at_point() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM public.stop_at(TG_ARGV[0]); RETURN NULL; END $$;`

// newDatabase has a server whose tests may open many connections.
func newDatabase(t *testing.T, server *devpg.Server) *relaytest.Database {
	t.Helper()
	url, drop, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	db := relaytest.Adopt(t, url)
	db.Do(t, tables)
	return db
}

// enqueue inserts n tasks of a type.
func enqueue(t *testing.T, db *relaytest.Database, taskType string, n int, p string) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts, payload, group_key)
		SELECT $1, 1000, $3::jsonb, CASE WHEN $1 LIKE 'PER_KEY%' THEN 'k' END FROM generate_series(1, $2)`, taskType, n, p)
}

// worker has the handlers of a relay process. side is a pool apart from the relay's, for what a
// handler tells the test whatever becomes of its transaction.
type worker struct{ side *sql.DB }

// registry has handlers of each kind: without limits, at most three at once in all relays, of a type or
// of a key, and a hundred a second.
func registry(side *sql.DB) *handlers.Registry {
	w, reg := worker{side}, handlers.New()
	for name, kind := range kinds {
		relaytest.Register(reg, kind, name, 20, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			again := handlers.BatchResult{}
			for _, task := range tasks {
				if err := w.effect(ctx, tx, task); err != nil {
					return err
				}
				if task.Iterations < task.Payload.Again {
					again[task.ID] = handlers.RunAgain(time.Millisecond)
				}
			}
			switch {
			case len(again) == 0:
				return nil
			case kind != "batch":
				return again[tasks[0].ID]
			}
			return again
		})
		relaytest.Register(reg, kind, "LIMITED_"+name, 5, w.limited, handlers.MaxRunning(limit))
		relaytest.Register(reg, kind, "PER_KEY_"+name, 5, w.perKey, handlers.MaxRunningPerKey(limit))
		relaytest.Register(reg, kind, "RATED_"+name, 20, w.rated, handlers.Rate(perSecond, time.Second))
	}
	return reg
}

// effect does what the payload says.
func (w worker) effect(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
	if tx != nil {
		if _, err := tx.ExecContext(ctx, `SELECT stop_at('handler begun')`); err != nil {
			return err
		}
	}
	work := time.Duration(task.Payload.Ms) * time.Millisecond
	if task.Payload.Kill {
		// On a machine that stands still a start is written late, and not left out.
		_, err := w.side.ExecContext(context.WithoutCancel(ctx), noteStart, task.ID, task.Type, task.Attempt, time.Now())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		pause(ctx, work/2)
		os.Exit(3)
	}
	pause(ctx, work)
	if tx == nil {
		_, err := w.side.ExecContext(ctx, noteDone, task.ID, task.Iterations, -1)
		return err
	}
	if _, err := tx.ExecContext(ctx, noteDone, task.ID, task.Iterations, attemptOf(task)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `SELECT stop_at('effect written')`)
	return err
}

const (
	noteStart = `INSERT INTO start (task_id, task_type, attempt, at) VALUES ($1, $2, $3, $4)`
	noteDone  = `INSERT INTO done (task_id, iteration, attempt) VALUES ($1, $2, $3)`
)

// attemptOf is the attempt without those that ended by a timeout, as on a machine that stands still.
func attemptOf(task *outbox.Task[payload]) int {
	n := task.Attempt
	for _, e := range task.FailedAttempts {
		if e.Error != "lost" {
			n--
		}
	}
	return n
}

// pause is work apart from the database.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
