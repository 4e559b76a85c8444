package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/proxy"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// attemptsSeen are the attempts that handlers saw, by task.
type attemptsSeen struct {
	mu sync.Mutex
	by map[int64][]int
}

// use is middleware.
func (a *attemptsSeen) use(next handlers.Func) handlers.Func {
	a.by = map[int64][]int{}
	return func(ctx context.Context, call *handlers.Call) error {
		a.mu.Lock()
		for _, task := range call.Tasks {
			a.by[task.ID] = append(a.by[task.ID], task.Attempt)
		}
		a.mu.Unlock()
		return next(ctx, call)
	}
}

func (a *attemptsSeen) of(id int64) []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.by[id])
}

// proxied is a pool on the same database, with a proxy before what it leads to.
func (db *database) proxied(t *testing.T, driver string) (*proxy.Proxy, *database) {
	t.Helper()
	pooled, err := pgtest.PoolURL(relaytest.DriverName(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	p, url := relaytest.Through(t, pooled)
	return p, open(t, url, driver)
}

// A connection that ends around a COMMIT leaves its outcome unknown. The rows are the truth: each
// task has its effect once, and no attempt is counted for it.
func TestACommitOfUnknownOutcomeCostsNoAttemptAndRepeatsNoEffect(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	rounds := relaytest.Times(1, 3)
	type want [3][]int // attempts that the handler sees, for each way to cut; nil: once or twice the first
	once := want{{1}, {1}, {1}}
	tests := map[string]func(*testing.T){}
	for _, driver := range drivers {
		db := newDatabase(t, driver)
		cutter, pool := db.proxied(t, driver)
		seen, reg := &attemptsSeen{}, all()
		reg.Use(seen.use)
		failsFirst := func(attempt int) error {
			if attempt == 1 {
				return errors.New("boom")
			}
			return nil
		}
		registerTx(reg, outbox.NewTaskType[payload]("TX_FAILS_FIRST"),
			func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
				return errors.Join(txEffect(ctx, tx, task), failsFirst(task.Attempt))
			}, retrySoon())
		handlers.Leased(reg, outbox.NewTaskType[payload]("LEASED_PLAIN"),
			func(ctx context.Context, task *outbox.Task[payload]) error {
				_, err := db.ExecContext(ctx, `INSERT INTO effect VALUES ($1, $2)`, task.ID, task.Attempt)
				return err
			})
		handlers.Leased(reg, outbox.NewTaskType[payload]("LEASED_FAILS_FIRST"),
			func(ctx context.Context, task *outbox.Task[payload]) error {
				if err := failsFirst(task.Attempt); err != nil {
					return err
				}
				return leasedEffect(ctx, task)
			}, retrySoon())
		var lost atomic.Int32 // leases, as observers hear
		run(t, pool, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond,
			Observers: []relay.Observer{{Ended: func(e relay.RunEnd) {
				if e.Type != "LEASED" && e.Tasks[0].Outcome == relay.LeaseLost { // of LEASED the handler's own commit is cut
					lost.Add(1)
				}
			}}}})
		tests[driver] = func(t *testing.T) {
			for _, c := range []struct {
				taskType, statement string // of the transaction whose commit is cut
				want                want
			}{
				{"TX", "outbox: claim", want{{1, 1}, {1}, nil}},
				{"BATCH", "outbox: claim", want{{1, 1}, {1}, nil}},
				{"TX_FAILS_FIRST", "outbox: write back", want{{1, 1, 2}, {1, 2}, nil}},
				{"LEASED", "outbox: lease", once},
				{"LEASED", "outbox: complete a leased task", want{{1, 1}, {1}, nil}},
				{"LEASED_PLAIN", "outbox: complete leased tasks", once},
				{"LEASED_FAILS_FIRST", "outbox: end a lease", want{{1, 2}, {1, 2}, {1, 2}}},
			} {
				for how, way := range []string{"request lost", "reply lost", "cut after the request"} {
					for range rounds {
						var cut atomic.Bool
						cutter.Set(&proxy.Trap{Catches: proxy.Commit(c.statement), How: proxy.How(how), Then: func() { cut.Store(true) }})
						id := int64(db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ($1) RETURNING task_id`, c.taskType))
						name := fmt.Sprintf("%s, %q: %v", c.taskType, c.statement, way)
						eventually(t, 30*time.Second, name+": the task is done", func() bool {
							return cut.Load() && db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
						})
						db.wantRows(t, 1, `effect WHERE task_id = $1`, id)
						got, want := seen.of(id), c.want[how]
						if want == nil { // either
							want = c.want[1-min(len(got)-len(c.want[1]), 1)]
						}
						if !slices.Equal(got, want) {
							t.Errorf("%s: the handler saw attempts %v, want %v", name, got, want)
						}
					}
				}
			}
			db.wantRows(t, 0, `outbox.dead_task`)
			if n := lost.Load(); n != 0 {
				t.Errorf("observers heard of %d lost leases: a commit of unknown outcome is none", n)
			}
		}
	}
	relaytest.Together(t, tests)
}

// A COMMIT that is lost on its way is no failure of the handler's.
func TestALostCommitIsNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	c := db.counted(t)
	c.arm("COMMIT after outbox: end a claim", fault{err: driver.ErrBadConn})
	db.Enqueue(t, "TX", 1)
	run(t, c.database, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 1)
	if attempt := db.Int(t, `SELECT attempt FROM effect`); attempt != 1 || !c.fired() {
		t.Errorf("done in attempt %d, want 1; the COMMIT was lost: %v", attempt, c.fired())
	}
}
