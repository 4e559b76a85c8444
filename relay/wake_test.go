package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
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
			noErr(t, err)
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
	needs.CI(t)
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
		noErr(t, server.Stop("fast"))
		eventually(t, 45*time.Second, "the relay says that the server is gone", func() bool {
			return r.Log.Count(outageBegins) > round
		})
		noErr(t, server.Start(context.Background()))
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
		noErr(t, err)
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
	noErr(t, r.Health())
	r.Log.Want(t, 0, "level=ERROR")
	noOutage(t, r.Log.String())
}

// F29: NOTIFY is paid for by idle relays alone. On a machine that is busy with something else
// relays may have nothing to do for a while, so it is tried again.
func TestEnqueuersBesideBusyRelaysSendHardlyANotification(t *testing.T) {
	t.Parallel()
	needs.Timing(t)
	for _, relays := range []int{1, 2} {
		t.Run(fmt.Sprint(relays, " relays"), func(t *testing.T) {
			db := newDatabase(t)
			for range relays {
				run(t, open(t, db.URL), all(), relay.Config{ListenDSN: db.URL})
			}
			listening(t, db)
			for try := 1; ; try++ {
				sent, of := notifications(t, db)
				db.Do(t, `TRUNCATE outbox.task`) // what the relays have not caught up with
				t.Logf("%d notifications by %d transactions", sent, of)
				if sent*100 < of {
					return
				}
				if try == 4 {
					t.Fatalf("%d of %d transactions sent a notification, want less than 1 %%", sent, of)
				}
			}
		})
	}
}

// notifications counts the wake-ups while eight sessions enqueue, and the transactions of these.
func notifications(t *testing.T, db *database) (sent, of int64) {
	t.Helper()
	l := pq.NewListener(db.URL, time.Second, time.Second, nil)
	defer l.Close()
	noErr(t, l.Listen("outbox"))
	const warmUp, length = time.Second, 2500 * time.Millisecond
	var commits atomic.Int64
	ctx, cancel := context.WithTimeout(context.Background(), warmUp+length)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				db.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ('TX', '{}')`)
				commits.Add(1)
			}
		})
	}
	<-time.After(warmUp) // until the relays, which were idle, are busy
	db.Do(t, `SELECT pg_notify('outbox', 'begin')`)
	before := commits.Load()
	wg.Wait()
	of = commits.Load() - before
	db.Do(t, `SELECT pg_notify('outbox', 'end')`)
	for n := range l.Notify {
		switch {
		case n == nil:
			t.Fatal("the listener was disconnected")
		case n.Extra == "":
			sent++
		case n.Extra == "begin":
			sent = 0
		case n.Extra == "end":
			return sent, of
		}
	}
	return sent, of
}

// Not beside other tests, whose enqueues wake all relays of the process; a handler that one of them
// has left behind may, so there is a second try and a third. The time is long enough for takeovers
// to begin.
func TestIdleRelaysSendTwoStatementsASecond(t *testing.T) {
	t.Parallel()
	needs.Timing(t)
	db := newDatabase(t)
	var sent [3]atomic.Int64 // by each relay: BEGIN, COMMIT and ROLLBACK are some
	for i := range sent {
		counted := &faulty{each: func(_ context.Context, call string) {
			if call != "ping" {
				sent[i].Add(1)
			}
		}}
		run(t, db.through(t, counted.wrap), all(), relay.Config{ListenDSN: db.URL})
	}
	db.Enqueue(t, "TX", 3)
	db.Emptied(t, 10*time.Second)
	db.becomes(t, 30*time.Second, 0, "the log is folded", `SELECT count(*) FROM outbox.counter_log`)
	most := int64(math.MaxInt64)
	for try := 0; try < 3 && most > 30; try++ {
		most = 0
		for i := range sent {
			sent[i].Store(0)
		}
		<-time.After(15 * time.Second)
		for i := range sent {
			most = max(most, sent[i].Load())
		}
	}
	if most > 30 {
		t.Errorf("a relay sends %d statements in 15 s, want at most 30", most)
	}
}

// F28: where no relay has a ListenDSN, no transaction of the app notifies, so it may be a part of a
// two-phase commit. Where one has, PostgreSQL refuses PREPARE TRANSACTION while it is idle.
func TestATransactionThatEnqueuesCanBePreparedWhereNoRelayListens(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := adopt(t, pgtest.Local(t, map[string]string{"max_prepared_transactions": "2"}).URL())
	run(t, db, all(), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 20*time.Second) // and now it is idle
	later := db.Int(t, `INSERT INTO outbox.task (task_type, payload, run_at) VALUES ('TX', '{}', now() + interval '1 hour')
		RETURNING task_id`)
	conn, err := direct(t, db.URL).Conn(t.Context())
	noErr(t, err)
	defer conn.Close()
	for _, statement := range []string{`BEGIN`, `INSERT INTO outbox.task (task_type, payload) VALUES ('TX', '{}')`,
		fmt.Sprintf(`SELECT outbox.run_task_now(%d)`, later), `PREPARE TRANSACTION 'it'`, `COMMIT PREPARED 'it'`} {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	db.want(t, 0, "the wake-up request of a relay that does not listen", `SELECT last_value FROM outbox.wake`)
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 3)
}

// A request for wake-ups that lies hours ahead is no request, and is withdrawn with the next one.
func TestAWakeUpRequestOfAClockThatWasAheadIsWithdrawn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `SELECT setval('outbox.wake', extract(epoch FROM now() + interval '1 day')::bigint)`)
	run(t, db, all(), relay.Config{ListenDSN: db.URL})
	db.becomes(t, 30*time.Second, 1, "relays ask for wake-ups of the next seconds", `SELECT count(*) FROM outbox.wake
		WHERE last_value BETWEEN 1 AND extract(epoch FROM now()) + 7200`)
}
