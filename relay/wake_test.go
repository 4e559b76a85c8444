package relay_test

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// signUps measures how long n tasks take from their commit, one at a time. Each transaction is open
// for a while after its insert; there is a pause after each task.
func (p *probe) signUps(t testing.TB, db *database, n int, open, pause time.Duration) (out delays) {
	t.Helper()
	for range n {
		commit := uncommitted(t, db, `INSERT INTO outbox.task (task_type) VALUES ($1)`, p.taskType)
		<-time.After(open)
		commit()
		committed := time.Now()
		select {
		case at := <-p.started:
			out = append(out, max(at.Sub(committed), 0))
		case <-time.After(45 * time.Second): // less than the poll interval of those that must not wait for a poll
			t.Fatal("a task did not start within 45 s")
		}
		<-time.After(pause)
	}
	return out
}

// quick runs a round, whose tasks have to start. With OUTBOX_TEST_TIMING=1 it runs rounds until one
// has the quantile within the limit: other load on the machine may spoil some, and the tails of
// most.
func quick(t testing.TB, quantile float64, limit time.Duration, round func() delays) {
	t.Helper()
	if !relaytest.Timing {
		t.Log(round())
		return
	}
	var rounds []string
	for range 5 {
		d := round()
		rounds = append(rounds, d.String())
		if d.at(quantile) <= limit {
			t.Log(d)
			return
		}
	}
	t.Errorf("p%g is not within %v, in none of the rounds\n%s", 100*quantile, limit, strings.Join(rounds, "\n"))
}

// The relay would poll only once a minute, and it has a pool of its own: only NOTIFY can start the
// task, within 10 ms on a quiet machine. Then transactions that inserted before the relay requested
// wake-ups commit after it has polled.
func TestANotificationStartsATaskLongBeforeThePoll(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	p := newProbe(reg, "TX")
	run(t, open(t, db.URL), reg, relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
	listening(t, db)
	quick(t, .5, 10*time.Millisecond, func() delays { return p.signUps(t, db, 10, 0, 90*time.Millisecond) })
	quick(t, .5, 50*time.Millisecond, func() delays {
		return p.signUps(t, db, 10, 20*time.Millisecond, 30*time.Millisecond)
	})
}

// listening waits until a relay has requested wake-ups, which it does only when its LISTEN is
// proved to work.
func listening(t testing.TB, db *database) {
	t.Helper()
	eventually(t, 20*time.Second, "the relay requests wake-ups", func() bool {
		return db.Int(t, `SELECT last_value FROM outbox.wake`) > 0
	})
}

// A relay that starts tests its LISTEN by a notification of its own, which is no other relay's affair:
// where 20 start, each of them would poll and request wake-ups for each. Not beside other tests, whose
// enqueues wake all relays of the process.
func TestARelayThatStartsWakesNoOther(t *testing.T) {
	t.Parallel()
	needs.Timing(t)
	db := newDatabase(t)
	starts := func() *atomic.Int32 {
		requests := &atomic.Int32{}
		counted := &faulty{each: func(_ context.Context, call string) {
			if call == "outbox: request wake-ups" {
				requests.Add(1)
			}
		}}
		run(t, db.through(t, counted.wrap), all(), relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
		eventually(t, time.Minute, "it relies on wake-ups", func() bool { return requests.Load() > 0 })
		return requests
	}
	first := starts()
	for range 10 {
		starts()
	}
	if n := first.Load(); n > 10 { // two for each start, if they did; a few, where a relay withdraws a request
		t.Errorf("the first relay requested wake-ups %d times", n)
	}
}

func TestACommitOfTheSameProcessWakesARelayWithoutListen(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	p := newProbe(reg, "TX")
	run(t, db, reg, relay.Config{PollInterval: time.Minute})
	quick(t, .5, 10*time.Millisecond, func() (out delays) {
		for range 10 {
			db.inTx(t, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, "TX", payload{})
				return err
			})
			committed := time.Now()
			at := <-p.started
			out = append(out, max(at.Sub(committed), 0))
			<-time.After(60 * time.Millisecond)
		}
		return out
	})
}

// F30, C14. Nobody wakes the relay: it has no DSN, or the one it has leads elsewhere.
func testPollFindsTheTask(t *testing.T) {
	const poll = 200 * time.Millisecond
	db, reg := newDatabase(t), handlers.New()
	p := newProbe(reg, "TX")
	run(t, db, reg, relay.Config{PollInterval: poll})
	quick(t, .9, poll+100*time.Millisecond, func() delays { return p.signUps(t, db, 4, 0, 7*poll/4) })
}

// However LISTEN fails, the relay says so once and polls.
func TestWhereListenDoesNotWorkTheRelayWarnsOnceAndPolls(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for name, dsn := range map[string]func(db *database) string{
		"nobody listens on the port": func(db *database) string { return withPort(t, db.URL, "1") },
		"another database":           func(db *database) string { return pgtest.Database(t) },
		"the pool's way": func(db *database) string { // LISTEN succeeds in a session that a pooler gives to others
			through, err := pgtest.PoolURL("postgres", db.URL)
			if err != nil {
				t.Fatal(err)
			}
			return through
		},
	} {
		if os.Getenv("OUTBOX_TEST_POOLER") == "" && name == "the pool's way" {
			continue // it works there
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			p := newProbe(reg, "TX")
			r := run(t, db, reg, relay.Config{ListenDSN: dsn(db), PollInterval: 100 * time.Millisecond})
			const warning = "no wake-ups by LISTEN"
			eventually(t, 20*time.Second, "the relay warns", func() bool { return r.Log.Count(warning) > 0 })
			p.signUps(t, db, 4, 0, 500*time.Millisecond)
			r.Log.Want(t, 1, warning)
			db.want(t, 0, "its wake-up request, which would cost every enqueue", `SELECT last_value FROM outbox.wake`)
		})
	}
}

// A poll cannot find the task here, as the relay polls only once a minute: the end of LISTEN tells
// it of the outage, it tries until the server is back, and then LISTEN works again. The pool is
// full of connections that are dead then, and none of them is an outage of its own.
func TestListenWorksAgainAfterARestartOfTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Local(t, nil)
	db, reg := adopt(t, server.URL()), handlers.New()
	p := newProbe(reg, "TX")
	app := open(t, db.URL)
	app.SetMaxIdleConns(60)
	r := run(t, app, reg, relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
	listening(t, db)
	p.signUps(t, db, 3, 0, 60*time.Millisecond)
	db.Emptied(t, 30*time.Second)
	rounds := relaytest.Times(1, 2)
	for round := range rounds {
		fill(t, app, 50)
		if err := server.Stop("fast"); err != nil {
			t.Fatal(err)
		}
		eventually(t, 45*time.Second, "the relay says that the server is gone", func() bool {
			return r.Log.Count(outageBegins) > round
		})
		if err := server.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		db.reachable(t)
		eventually(t, 45*time.Second, "the relay says that the server is back", func() bool {
			return r.Log.Count(outageEnds) > round
		})
		p.signUps(t, db, 1, 0, 0)
		db.Do(t, `SELECT setval('outbox.wake', 0)`)
		listening(t, db)
		quick(t, .5, 50*time.Millisecond, func() delays { return p.signUps(t, db, 3, 0, 60*time.Millisecond) })
	}
	r.Log.Want(t, rounds, outageBegins)
}

// fill leaves n idle connections in the pool.
func fill(t testing.TB, pool *database, n int) {
	t.Helper()
	for range n {
		conn, err := pool.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
}

// A wake-up names the task, which is claimed without a poll before. A wake-up of another test in this
// process may lead to a poll, so it is tried again.
func TestANamedTaskIsClaimedWithoutAPoll(t *testing.T) {
	t.Parallel()
	// a group claims by another statement than one task
	for kind, claim := range map[string]string{"TX": "claim", "LEASED": "lease"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var mu sync.Mutex
			var first string // the first call that finds tasks
			watched := &faulty{each: func(_ context.Context, call string) {
				mu.Lock()
				defer mu.Unlock()
				if first == "" && (strings.Contains(call, "outbox: poll") || strings.Contains(call, "outbox: "+claim)) {
					first = call
				}
			}}
			run(t, db.through(t, watched.wrap), all(), relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
			for try := 1; ; try++ {
				db.Do(t, `SELECT setval('outbox.wake', 0)`)
				listening(t, db)
				mu.Lock()
				first = ""
				mu.Unlock()
				db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ($1)`, kind)
				db.becomes(t, 30*time.Second, try, "the task is done", `SELECT count(*) FROM effect`)
				mu.Lock()
				got := first
				mu.Unlock()
				if strings.Contains(got, claim) {
					return
				}
				if try == 20 {
					t.Fatalf("in each of 20 tries %q came before the claim", got)
				}
			}
		})
	}
}

// Any role can send any wake-up: no type rests, nothing is logged, and tasks run as before. A claim
// that only a wake-up asked for may fail.
func TestForgedWakeUpsDoNotHoldUpAType(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r := run(t, db, all(), relay.Config{Workers: 4, ListenDSN: db.URL, PollInterval: time.Minute})
	listening(t, db)
	kinds := []string{"TX", "BATCH", "LEASED"}
	forge := func(rounds int, texts ...string) {
		tick := time.NewTicker(15 * time.Millisecond) // those that come faster are taken together
		defer tick.Stop()
		for range rounds {
			for _, text := range texts {
				for _, kind := range kinds {
					<-tick.C
					db.Do(t, `SELECT pg_notify('outbox', $1)`, text+kind)
				}
			}
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		forge(5, "40000 1 ", "-40000 1 ", "0 9223372036854775807 ", "0 99999999999999999999 ", "-32768 1 ", "0 1 ",
			strings.Repeat("0 ", 3000), "0 1 UNKNOWN", "x")
	}()
	done := 0
	for forging := true; forging; {
		select {
		case <-ended:
			forging = false
		default:
		}
		db.Enqueue(t, kinds[done%len(kinds)], 1)
		done++
		db.becomes(t, 30*time.Second, done, "the tasks that are done", `SELECT count(*) FROM effect`)
	}
	asked := db.Int(t, `SELECT last_value FROM outbox.wake`)
	eventually(t, 30*time.Second, "the relay is idle", func() bool {
		return db.Int(t, `SELECT last_value FROM outbox.wake`) > asked
	})
	const broken = "BEGIN RAISE division_by_zero;"
	replace := func(old, new string) {
		for _, name := range []string{"claim_tasks", "lease_tasks"} {
			db.Do(t, `DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('outbox.`+name+`'::regproc), '`+old+`', '`+new+`'); END $do$`)
		}
	}
	replace("BEGIN", broken)
	forge(10, "0 1 ")
	replace(broken, "BEGIN")
	for _, kind := range kinds {
		db.Enqueue(t, kind, 1)
	}
	db.becomes(t, 30*time.Second, done+len(kinds), "the tasks that are done", `SELECT count(*) FROM effect`)
	if err := r.Health(); err != nil {
		t.Error(err)
	}
	r.Log.Want(t, 0, "level=ERROR")
	r.Log.Want(t, 0, outageBegins)
}
