package relay_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
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
	tests := map[string]func(*testing.T){}
	for _, driver := range drivers {
		tests[driver] = func(t *testing.T) { testUnknownCommits(t, driver) }
	}
	relaytest.Together(t, tests)
}

func testUnknownCommits(t *testing.T, driver string) {
	db := newDatabase(t, driver)
	cutter, pool := db.proxied(t, driver)
	reg := handlers.New()
	var lost atomic.Int32 // leases, as observers hear
	for name, kind := range map[string]string{"TX": "tx", "TX FAILS": "tx", "BATCH": "batch", "COMPLETE": "complete",
		"LEASED": "leased", "LEASED FAILS": "leased"} {
		relaytest.Register(reg, kind, name, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			if tx == nil {
				tx = db
			}
			if strings.HasSuffix(name, "FAILS") && tasks[0].Attempt == 1 {
				return errAlways
			}
			return effect(ctx, tx, tasks[0].ID, tasks[0].Attempt)
		}, retrySoon())
	}
	run(t, pool, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond,
		Observers: []relay.Observer{{Ended: func(e relay.RunEnd) {
			if e.Type != "COMPLETE" && e.Tasks[0].Outcome == relay.LeaseLost { // of COMPLETE the handler's own commit is cut
				lost.Add(1)
			}
		}}}})
	for _, c := range []struct{ taskType, statement string }{ // of the transaction whose commit is cut
		{"TX", "outbox: claim"},
		{"BATCH", "outbox: claim"},
		{"TX FAILS", "outbox: write back"},
		{"COMPLETE", "outbox: lease"},
		{"COMPLETE", "outbox: complete a leased task"},
		{"LEASED", "outbox: complete leased tasks"},
		{"LEASED FAILS", "outbox: end a lease"},
	} {
		for how, way := range []string{"request lost", "reply lost", "cut after the request"} {
			var cut atomic.Bool
			cutter.Set(&proxy.Trap{Catches: proxy.Commit(c.statement), How: proxy.How(how), Then: func() { cut.Store(true) }})
			id := db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ($1) RETURNING task_id`, c.taskType)
			name := fmt.Sprintf("%s, %q: %v", c.taskType, c.statement, way)
			eventually(t, 30*time.Second, name+": the task is done", func() bool {
				return cut.Load() && db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
			})
			attempt := "1"
			if strings.HasSuffix(c.taskType, "FAILS") {
				attempt = "2"
			}
			db.want(t, attempt, name+": attempts with an effect", `SELECT string_agg(attempt::text, ' ') FROM effect
				WHERE task_id = $1`, id)
		}
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	if n := lost.Load(); n != 0 {
		t.Errorf("observers heard of %d lost leases: a commit of unknown outcome is none", n)
	}
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
