//go:build unix

package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/lib/pq"
	"github.com/nats-io/nats.go"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

// runRelay runs a relay until ctx ends and it has drained. side is a pool apart from the relay's.
func runRelay(ctx context.Context, c Config, db, side *sql.DB) error {
	h := worker{Config: c, side: side}
	reg := h.register()
	to, err := forwardEvents(reg, c, soon, many)
	if err != nil {
		return err
	}
	defer to.Close()
	r, err := relay.New(db, reg, relay.Config{
		Schedules: ticks(reg),
		Workers:   8, PollInterval: 200 * time.Millisecond, ListenDSN: c.URL, DrainTimeout: 10 * time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

var (
	soon = handlers.Backoff(func(int, error) (time.Duration, bool) { return 50 * time.Millisecond, true })
	many = handlers.MaxAttempts(1000) // kills are attempts, too
)

// worker has the handlers.
type worker struct {
	Config
	side *sql.DB
}

func (w *worker) register() *handlers.Registry {
	reg := handlers.New()
	group := handlers.GroupCommit(w.Group, 0)
	for _, t := range []outbox.TaskType[Payload]{typeTx, typePeriod} {
		handlers.Tx(reg, t, w.effect, soon, many, group)
	}
	kept := handlers.Retention(1000 * time.Hour) // longer than a clock is ahead
	handlers.Tx(reg, typeOrdered, w.ordered, soon, many, group, kept)
	handlers.Tx(reg, typeGrouped, w.grouped, soon, many, group, handlers.MaxRunningPerKey(perKey))
	handlers.Tx(reg, typeExpiring, w.expiring, soon, many, group)
	handlers.Batch(reg, typeBatch, 20, w.batch, soon, many)
	handlers.Leased(reg, typeLeased, w.leased, soon, many, kept)
	handlers.Leased(reg, typePlain, w.plain, soon, many, kept)
	handlers.Leased(reg, typeKeyed, w.keyed, soon, many)
	handlers.Tx(reg, TypePoison, poison(w.Dir), soon, handlers.MaxAttempts(PoisonStarts), group)
	return reg
}

// ordered has a result, and progress on another connection.
func (w *worker) ordered(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
	if err := noted(ctx, task); err != nil {
		return err
	}
	return w.effect(ctx, tx, task)
}

// noted notes a result that names the task.
func noted(ctx context.Context, task *outbox.Task[Payload]) error {
	return errors.Join(task.SetProgress(ctx, 0.5, task.Payload.K), task.SetResult(task.Payload.K))
}

// A lock of the transaction that removes the task, for each place of its key.
const placeSQL = `SELECT count(*) FROM (SELECT FROM generate_series(1, $2) AS place
	WHERE pg_try_advisory_xact_lock(hashtext($1), place) LIMIT 1) AS got`

// The transactions that have such locks, of those given, or all. One that has committed has locks for a
// moment still, but no xid.
const holdersSQL = `SELECT array_agg(a.pid || ' ' || a.backend_xid)
	FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.classid::bigint = hashtext($1)::bit(32)::bigint AND a.backend_xid IS NOT NULL
	AND ($2::text[] IS NULL OR a.pid || ' ' || a.backend_xid = ANY ($2))`

// grouped has one of the places of its key, or records that others have them all: two looks in a row
// find the same transactions.
func (w *worker) grouped(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
	for {
		var got int
		if err := tx.QueryRowContext(ctx, placeSQL, task.Payload.Key, perKey).Scan(&got); err != nil {
			return err
		}
		if got > 0 {
			break
		}
		var holders []string
		for look := 0; look == 0 || look == 1 && len(holders) >= perKey; look++ {
			if _, err := tx.ExecContext(ctx, `SELECT pg_stat_clear_snapshot()`); err != nil {
				return err
			}
			err := tx.QueryRowContext(ctx, holdersSQL, task.Payload.Key, pq.Array(holders)).Scan(pq.Array(&holders))
			if err != nil {
				return err
			}
		}
		if len(holders) >= perKey {
			return record(w.Dir, crowdedFile, false, task.Payload.Key, task.Payload.K)
		}
	}
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // work, beside that of others
	return w.effect(ctx, tx, task)
}

// Whether a transaction, and so its claim, began after the task had expired, and the journal has no run
// but this one: an earlier one may have ended before it recorded anything. One that failed has an attempt. One
// that was redriven does not expire any more.
const lateSQL = `SELECT COALESCE(now() > $1, false) AND (SELECT count(*) FROM outbox.running r
	WHERE $2 = ANY (COALESCE(r.task_ids, ARRAY[r.task_id]))) <= 1`

// expiring records whether it began too late.
func (w *worker) expiring(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
	var late bool
	if err := tx.QueryRowContext(ctx, lateSQL, task.ExpiresAt, task.ID).Scan(&late); err != nil {
		return err
	}
	if err := record(w.Dir, begunFile, false, task.Payload.K, late && task.Attempt == 1); err != nil {
		return err
	}
	return w.effect(ctx, tx, task)
}

// effect writes a row and moves money from one account to another. It fails after that, if the task
// asks for it.
func (w *worker) effect(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
	if err := w.write(ctx, tx, task); err != nil {
		return err
	}
	if task.ID%8 == 0 {
		from, to := rand.IntN(accounts), rand.IntN(accounts)
		for _, s := range []string{
			`SELECT FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE`,
			`UPDATE account SET balance = balance + (id = $2)::int - (id = $1)::int WHERE id IN ($1, $2)`,
		} {
			if _, err := tx.ExecContext(ctx, s, from, to); err != nil {
				return err
			}
		}
	}
	if task.Attempt <= task.Payload.Fail {
		return errAsked
	}
	return nil
}

func (w *worker) write(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effect (k, kind, seq, ordering_key, fail, task_id, attempt, relay)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		task.Payload.K, task.Type, task.Payload.Seq, task.OrderingKey+task.Payload.Period, task.Payload.Fail,
		task.ID, task.Attempt, w.Name)
	return err
}

func (w *worker) batch(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[Payload]) error {
	failed := handlers.BatchResult{}
	for _, task := range tasks {
		if task.Attempt <= task.Payload.Fail {
			failed[task.ID] = errAsked
		} else if err := w.write(ctx, tx, task); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

func (w *worker) leased(ctx context.Context, task *outbox.Task[Payload]) error {
	ctx, err := w.dawdle(ctx, task)
	if err != nil {
		return err
	}
	if task.Attempt > task.Payload.Fail {
		if err := w.call(task); err != nil {
			return err
		}
	}
	if err := noted(ctx, task); err != nil {
		return err
	}
	return task.Complete(ctx, func(tx *sql.Tx) error { return w.effect(ctx, tx, task) })
}

func (w *worker) plain(ctx context.Context, task *outbox.Task[Payload]) error {
	if task.Attempt <= task.Payload.Fail {
		return errAsked
	}
	ctx, err := w.dawdle(ctx, task)
	if err != nil {
		return err
	}
	if err := noted(ctx, task); err != nil {
		return err
	}
	return w.call(task)
}

// keyed writes the version of an entity that it read at its start, up to 100 ms before.
func (w *worker) keyed(ctx context.Context, task *outbox.Task[Payload]) error {
	var version int64
	row := w.side.QueryRowContext(ctx, `SELECT version FROM entity WHERE id = $1`, task.Payload.Entity)
	if err := row.Scan(&version); err != nil {
		return err
	}
	time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	return task.Complete(ctx, func(tx *sql.Tx) error {
		if err := w.write(ctx, tx, task); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE entity SET seen = greatest(seen, $2) WHERE id = $1`, task.Payload.Entity,
			version)
		return err
	})
}

// dawdle makes one in so many leased tasks take its time. Half of these end with their context; the others
// go on whatever happens to it, so that a relay that was frozen past its lease finds tasks to end that
// another one runs by then.
func (w *worker) dawdle(ctx context.Context, task *outbox.Task[Payload]) (context.Context, error) {
	if w.Dawdle == 0 || task.ID%w.Dawdle != 0 {
		return ctx, nil
	}
	if task.ID/w.Dawdle%2 == 0 {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-ctx.Done():
		return ctx, context.Cause(ctx)
	case <-time.After(w.DawdleFor):
		return ctx, nil
	}
}

// call stands for a call of the outside world, with an idempotency key.
func (w *worker) call(task *outbox.Task[Payload]) error {
	return record(w.Dir, callsFile, false, task.Payload.K)
}

// Targets is how many subjects of the broker events go to.
const Targets = 4

// Subject is that of a target.
func Subject(target int) string { return fmt.Sprint("chaos.", target) }

// forwardEvents registers the forwarding of events. The broker's password is read at each login, as
// it may have been rotated.
func forwardEvents(reg *handlers.Registry, c Config, opts ...handlers.Option) (*outboxnats.Publisher, error) {
	to, err := outboxnats.Open(c.Broker,
		outboxnats.Config{Options: []nats.Option{nats.UserInfoHandler(func() (user, password string) {
			text, _ := os.ReadFile(c.BrokerPassword)
			return User, string(text)
		})}})
	if err != nil {
		return nil, err
	}
	forward.Register(reg, typeEvent, to, forward.Source("/chaos"), forward.Timeout(5*time.Second),
		forward.HandlerOptions(opts...), forward.Route(func(_ context.Context, e *forward.Event) (string, error) {
			_, target, _ := strings.Cut(e.OrderingKey, "-to-")
			return "chaos." + target, nil
		}))
	return to, nil
}

// ticks is a schedule that never ends: each firing leaves a row.
func ticks(reg *handlers.Registry) []relay.Schedule {
	handlers.Tx(reg, TypeTick, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[Payload]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tick DEFAULT VALUES`)
		return err
	}, handlers.MaxAttempts(1000))
	return []relay.Schedule{{Name: "tick", Timing: relay.Every(time.Second), Task: TypeTick.New(Payload{K: "tick"})}}
}

// Poisons are the ways in which a handler ends its process, or its backend. It cannot recover from
// any of them.
var Poisons = []string{"exit", "stack", "memory", PoisonBackend}

// PoisonBackend ends the backend of the handler's connection.
const PoisonBackend = "backend"

// poison records its start and ends its process.
func poison(dir string) func(context.Context, *sql.Tx, *outbox.Task[Payload]) error {
	return func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
		if err := record(dir, startsFile, false, task.Payload.K, task.Payload.How, time.Now().UnixNano()); err != nil {
			return err
		}
		switch task.Payload.How {
		case "exit":
			os.Exit(3)
		case "stack":
			debug.SetMaxStack(1 << 20)
			fmt.Println(deeper(1))
		case "memory":
			limit := syscall.Rlimit{Cur: 1, Max: 1} // no more address space than there is
			if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
				return err
			}
			for all := [][]byte{}; ; {
				all = append(all, make([]byte, 64<<20))
				all[len(all)-1][0] = 1
			}
		default:
			_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		}
		return nil
	}
}

func deeper(n int) int {
	if n < 0 {
		return 0 // after more calls than any stack has room for
	}
	return deeper(n+1) + n
}
