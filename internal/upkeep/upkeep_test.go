package upkeep_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// relay is the upkeep of one that does not run: it beats and does jobs when a test says.
type relay struct {
	*upkeep.Heartbeat
	now  time.Time
	log  relaytest.Records
	lost []upkeep.LostRun // that it told
}

// newRelay has beaten for as long as it must before it takes over from others.
func newRelay(t *testing.T, db *relaytest.Database, shared ...upkeep.SharedJob) *relay {
	t.Helper()
	r, pool := &relay{now: time.Now()}, pg.NewPool(db.DB)
	if shared == nil {
		shared = upkeep.SharedJobs(0)
	}
	r.Heartbeat = upkeep.New(upkeep.Params{Looked: func(time.Duration) {},
		TookOver: func(runs []upkeep.LostRun) { r.lost = append(r.lost, runs...) },
		RelayID:  store.NewUUID(), Host: "host", PID: 1, Types: []string{"TX"},
		Workers: 1, Schedules: "{}", Limits: "{}", Schema: "outbox", Pool: pool, Pace: pg.NewPace(&pg.Broadcast{}, func() {}),
		Log: slog.New(slog.NewTextHandler(&r.log, nil)), Now: func() time.Time { return r.now },
		SharedJobs: shared, Lost: func() int { return 0 }, Ready: func() {}, Identified: func(string) {},
		Refused: func(_ context.Context, _ *pg.Dedicated, _ string, err error) (error, bool) { return err, false }})
	t.Cleanup(func() {
		r.Close()
		pool.Close()
	})
	for range 5 {
		relaytest.Must(r.Beat(t.Context()))
		r.now = r.now.Add(upkeep.Interval)
	}
	return r
}

// do does a part of a job, and again while a busy machine ends it by its own time limit.
func (r *relay) do(t *testing.T, job string) (rest time.Duration) {
	t.Helper()
	rest, err := r.Do(t.Context(), job)
	for try := 0; errors.Is(err, context.DeadlineExceeded) && try < 20; try++ {
		rest, err = r.Do(t.Context(), job)
	}
	if err != nil {
		t.Fatalf("%s: %v", job, err)
	}
	return rest
}

// job is the shared job of that name.
func job(name string) upkeep.SharedJob {
	for _, j := range upkeep.SharedJobs(time.Hour) {
		if j.Name == name {
			return j
		}
	}
	panic(name)
}

const (
	busyRelay, idleRelay = "dddddddd-0000-4000-8000-000000000000", "eeeeeeee-0000-4000-8000-000000000000"
	taken                = "a relay is dead; its leased tasks are taken over"
	leasedOf             = `INSERT INTO outbox.task (task_type, state, attempt, lease_token, relay_id`
)

func is(t *testing.T, db *relaytest.Database, want, query string) {
	t.Helper()
	if got := db.Text(t, query); got != want {
		t.Errorf("%q, want %q: %s", got, want, query)
	}
}

func clock(t *testing.T, db *relaytest.Database) string {
	return db.Text(t, `SELECT clock_timestamp()`)
}

// rests says that the job is due so many seconds after it was done, which was after began.
func rests(t *testing.T, db *relaytest.Database, job string, seconds int, began string) {
	t.Helper()
	if got := db.Text(t, `SELECT due_at - $1 * interval '1 second' BETWEEN $2 AND clock_timestamp()
		FROM outbox.maintenance WHERE job = $3`, seconds, began, job); got != "true" {
		t.Errorf("%s is not due %d s after it was done", job, seconds)
	}
}

// A relay without leases, say of Tx handlers only, is logged too, once in the fleet. It stays in
// the list for an hour after the takeover, however long ago it died.
func TestADeadRelayIsLoggedOnceAndListedForAnHour(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		SELECT id, host, pid, now() - interval '5 hours', '{}'
		  FROM (VALUES ('`+busyRelay+`'::uuid, 'busy', 1), ('`+idleRelay+`', 'idle', 2)) AS r (id, host, pid)`)
	db.Do(t, leasedOf+`, timeline) SELECT 'LEASED', 'leased', 1, relay_id, relay_id,
		       CASE n WHEN 1 THEN '[{"event": "failed"}, {"event": "lost"}]'
		              WHEN 2 THEN '[{"event": "lost"}, {"event": "failed"}]' END::jsonb
		  FROM outbox.relay, generate_series(1, 3) n WHERE host = 'busy'`)
	late := newRelay(t, db) // as after an outage: all others look dead, and have the time to renew first
	late.now = late.now.Add(time.Minute)
	late.do(t, "take over")
	is(t, db, "0", `SELECT count(*) FROM outbox.task WHERE lease_token IS NULL`)
	first, second := newRelay(t, db), newRelay(t, db)
	for _, r := range []*relay{first, second, first} {
		r.do(t, "take over")
		r.do(t, "reap")
	}
	first.log.Want(t, 2, taken)
	first.log.Want(t, 1, "host=busy pid=1 tasks=3 isolated=1")
	first.log.Want(t, 1, "host=idle pid=2 tasks=0 isolated=0")
	second.log.Want(t, 0, taken)
	is(t, db, "3", `SELECT count(*) FROM outbox.task WHERE lease_token IS NULL`)
	is(t, db, "busy idle", `SELECT string_agg(host, ' ' ORDER BY host) FROM outbox.relay WHERE alive_until < now()`)

	// The hour begins again where one more of its tasks is taken over.
	db.Do(t, `UPDATE outbox.relay SET taken_over_at = taken_over_at - interval '61 minutes'`)
	db.Do(t, leasedOf+`) SELECT 'LEASED', 'leased', 1, relay_id, relay_id FROM outbox.relay WHERE host = 'busy'`)
	for _, name := range []string{"reap", "take over", "reap"} {
		first.do(t, name)
	}
	is(t, db, "busy", `SELECT string_agg(host, ' ') FROM outbox.relay WHERE alive_until < now()`)
	db.Do(t, `UPDATE outbox.relay SET taken_over_at = taken_over_at - interval '61 minutes'`)
	first.do(t, "reap")
	is(t, db, "0", `SELECT count(*) FROM outbox.relay WHERE alive_until < now()`)

	// A heartbeat ends the takeover of its own relay.
	db.Do(t, `UPDATE outbox.relay SET taken_over_at = now()`)
	relaytest.Must(first.Beat(t.Context()))
	is(t, db, "1", `SELECT count(*) FROM outbox.relay WHERE taken_over_at IS NULL`)
}

// A lease that ran out is not among them: its relay may live, and tells how the run ended.
func TestATakeoverTellsTheRunsThatWereLost(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ('`+busyRelay+`', 'busy', 1, now() - interval '5 hours', '{}')`)
	db.Do(t, leasedOf+`, leased_until) VALUES ('DEAD', 'leased', 2, '`+busyRelay+`'::uuid, '`+busyRelay+`'::uuid, NULL),
		('STRANDED', 'leased', 1, '`+idleRelay+`', '`+idleRelay+`', NULL)`)
	r := newRelay(t, db)
	const over = `, leased_until) VALUES ('OVER', 'leased', 1, $1::uuid, $1::uuid, now() - interval '1 hour')`
	db.Do(t, leasedOf+over, r.RelayID)
	r.do(t, "take over")
	got := ""
	for _, run := range r.lost {
		got += fmt.Sprintf("%s %d; ", run.Type, run.Attempt)
		is(t, db, run.Type, fmt.Sprintf(`SELECT task_type FROM outbox.task WHERE task_id = %d`, run.TaskID))
	}
	if got != "DEAD 2; STRANDED 1; " {
		t.Errorf("the takeover told of %s", got)
	}
	is(t, db, "3", `SELECT count(*) FROM outbox.task WHERE state = 'ready'`)
}

// A task that was asked to end does not run again because its relay died, or its lease ended, before it
// heard of that.
func TestACanceledTaskIsRemovedWithItsLease(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ('`+busyRelay+`', 'busy', 1, now() - interval '5 hours', '{}')`)
	db.Do(t, leasedOf+`)
		SELECT 'LEASED', 'leased', 1, '`+busyRelay+`'::uuid, '`+busyRelay+`'::uuid FROM generate_series(1, 2)
		UNION ALL SELECT 'LEASED', 'leased', 1, '`+idleRelay+`', '`+idleRelay+`' FROM generate_series(1, 2)`)
	db.Do(t, `INSERT INTO outbox.cancel (task_id) SELECT min(task_id) FROM outbox.task GROUP BY relay_id`)
	newRelay(t, db).do(t, "take over")
	is(t, db, "2 ready", `SELECT count(*) || ' ' || string_agg(DISTINCT state, ' ') FROM outbox.task`)
	is(t, db, "2", `SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'canceled'`)
}

// In a database that was restored in place, or lost its latest transactions in a failover, all
// relays look dead until they renew. A relay's own row is older than its beats then, or gone.
func TestAfterARestoreRelaysRenewBeforeTheirLeasesAreTakenOver(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]string{
		"older": `UPDATE outbox.relay SET alive_until = now() - interval '1 hour'`,
		"gone":  `DELETE FROM outbox.relay`,
	} {
		db := relaytest.NewDatabase(t)
		first, other := newRelay(t, db), newRelay(t, db)
		db.Do(t, leasedOf+`) VALUES ('LEASED', 'leased', 1, $1::uuid, $1::uuid)`, other.RelayID)
		db.Do(t, restore)
		for range 3 { // the other one has not renewed yet
			relaytest.Must(first.Beat(t.Context()))
			first.do(t, "take over")
			first.now = first.now.Add(upkeep.Interval)
		}
		relaytest.Must(other.Beat(t.Context()))
		for range 3 {
			relaytest.Must(first.Beat(t.Context()))
			first.do(t, "take over")
			first.now = first.now.Add(upkeep.Interval)
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE lease_token IS NULL`); n != 0 {
			t.Errorf("its row is %s: the lease of a relay that lives was taken over", name)
		}
		first.log.Want(t, 0, taken)
	}
}

// Times that were written while the server's clock was a day ahead stop no upkeep: the leases of a
// relay that died then are taken over, and shared jobs go on.
func TestTimesOfAClockThatWasAheadAreNotBelieved(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ('`+busyRelay+`', 'h', 1, now() + interval '1 day', '{}')`)
	db.Do(t, leasedOf+`, leased_until) SELECT 'LEASED', 'leased', 1, relay_id, relay_id, now() + interval '2 days'
		FROM outbox.relay`)
	r := newRelay(t, db, job("fold"))
	r.do(t, "take over")
	is(t, db, "1", `SELECT count(*) FROM outbox.task WHERE lease_token IS NULL`)
	is(t, db, "1", `SELECT count(*) FROM outbox.relay WHERE alive_until <= now() AND taken_over_at <= now()`)
	r.log.Want(t, 1, taken)

	r.do(t, "maintain") // adds its row
	db.Do(t, `UPDATE outbox.maintenance SET due_at = now() + interval '1 day'; DELETE FROM outbox.task`)
	r.do(t, "maintain")
	is(t, db, "0 1", `SELECT concat_ws(' ', (SELECT count(*) FROM outbox.counter_log),
		(SELECT count(*) FROM outbox.maintenance WHERE due_at < now() + interval '1 hour'))`)
}

// One relay of several does a shared job when it is due. A job that hangs changes nothing, rests,
// and keeps no relay from the others; neither does a job whose row another relay has locked. A job
// that a newer relay knows is left alone.
func TestOneRelayOfManyDoesASharedJobWhenItIsDue(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE done (job text)`)
	write := func(name, slow string) upkeep.SharedJob {
		run := func(ctx context.Context, _ pg.Schema, _ *slog.Logger, tx *sql.Tx) (time.Duration, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO done VALUES ($1)`, name)
			_, hangs := tx.ExecContext(ctx, slow)
			return 30 * time.Minute, errors.Join(err, hangs)
		}
		return upkeep.SharedJob{Name: name, Run: run}
	}
	jobs := []upkeep.SharedJob{write("hangs", `SELECT pg_sleep(60)`), write("locked", ""), write("works", "")}
	relays := []*relay{newRelay(t, db, jobs...), newRelay(t, db, jobs...)}
	pass := func() {
		t.Helper()
		for range len(jobs) + 1 {
			for _, r := range relays {
				r.do(t, "maintain")
			}
		}
	}
	db.Do(t, `INSERT INTO outbox.maintenance (job, due_at) VALUES ('locked', now() - interval '1 hour')`)
	db.Do(t, `INSERT INTO outbox.maintenance (job, due_at) VALUES ('newer', now() - interval '2 hours')`)
	locker, err := db.Begin()
	if err == nil {
		_, err = locker.Exec(`SELECT FROM outbox.maintenance WHERE job = 'locked' FOR UPDATE`)
	}
	relaytest.Must(err)
	began := clock(t, db)
	pass()
	is(t, db, "works", `SELECT string_agg(job, ' ' ORDER BY job) FROM done`)
	rests(t, db, "hangs", 10, began)
	rests(t, db, "works", 1800, began)
	relaytest.Must(locker.Rollback())
	pass()
	is(t, db, "locked works", `SELECT string_agg(job, ' ' ORDER BY job) FROM done`)
	db.Do(t, `UPDATE outbox.maintenance SET due_at = now() WHERE job = 'works'`)
	pass()
	is(t, db, "locked works works", `SELECT string_agg(job, ' ' ORDER BY job) FROM done`)
}

// Whatever of its upkeep hangs, a relay beats in time.
func TestAJobThatHangsDelaysNoBeat(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	r := newRelay(t, db)
	db.Hold(t, `LOCK TABLE outbox.unique_key, outbox.running, outbox.maintenance IN ACCESS EXCLUSIVE MODE`)
	for _, job := range []string{"reap", "sweep keys", "maintain"} {
		began, most := time.Now(), 20*upkeep.Interval // on a busy machine; a job without a limit hangs for ever
		if relaytest.Timing {
			most = 2 * upkeep.Interval
		}
		if _, _ = r.Do(t.Context(), job); time.Since(began) > most {
			t.Errorf("%s goes on for %v", job, time.Since(began))
		}
	}
}

// The fold takes more rows than one of its statements does, and the counts stay.
func TestTheFoldLeavesNoLogAndTheSameCounts(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	for i := range 12 {
		db.Do(t, `INSERT INTO outbox.counter_log (tasks, task_type, kind)
			SELECT -1 + 2 * (n % 2), 'OTHER', $1 FROM generate_series(1, 1000) n`, fmt.Sprint("kind", i))
	}
	r := newRelay(t, db, job("fold"))
	for range 10 {
		r.do(t, "maintain")
		db.Do(t, `UPDATE outbox.maintenance SET due_at = now()`)
	}
	is(t, db, "0 12", `SELECT concat_ws(' ', (SELECT count(*) FROM outbox.counter_log),
		(SELECT count(*) FROM outbox.counter WHERE task_type = 'OTHER' AND tasks = 0))`)
	db.Do(t, `DELETE FROM outbox.counter WHERE task_type = 'OTHER'`)
}

// Old rows go, more than one statement deletes, and others stay. Without a retention dead letters stay.
func TestAPurgeDeletesWhatIsOldAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ table, insert string }{
		"purge history": {"done_task", `(task_id, run_at, created_at, finished_at, keep_until, priority, attempt,
			task_type, payload) SELECT n, now(), now(), now(), now() + age, 0, 1, 'T', '{}'`},
		"purge dead letters": {"dead_task", `(task_id, run_at, created_at, died_at, priority, attempt, max_attempts,
			reason, task_type, payload)
			SELECT n, now(), now(), now() - interval '1 hour' + age, 0, 1, 1, 'attempts', 'T', '{}'`},
		"purge inbox": {"inbox", `(source, event_id, keep_until) SELECT 's', n::text, now() + age`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := relaytest.NewDatabase(t)
			db.Do(t, `INSERT INTO outbox.`+c.table+` `+c.insert+`
				FROM (SELECT n, CASE WHEN n <= 2500 THEN interval '-1 second' ELSE interval '30 minutes' END AS age
				        FROM generate_series(1, 2510) n) AS rows`)
			r := newRelay(t, db, job(name))
			for range 5 {
				r.do(t, "maintain")
				db.Do(t, `UPDATE outbox.maintenance SET due_at = now()`)
			}
			is(t, db, "10", `SELECT count(*) FROM outbox.`+c.table)
			db.Do(t, `DELETE FROM outbox.`+c.table+`; DELETE FROM outbox.counter_log`)
		})
	}
	for _, j := range upkeep.SharedJobs(0) {
		if j.Name == "purge dead letters" {
			t.Error("without a retention dead letters are purged")
		}
	}
}

// A sample has the counts of the thousand types with most tasks, and their sum over all. Rows of
// the day before go, a bounded number with each sample.
func TestASampleHasTheTypesWithMostTasksAndTheSumOfAll(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'T' || n FROM generate_series(1, 1500) n`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at)
		SELECT 'T' || n, now() + interval '1 hour' FROM generate_series(1001, 1500) n`)
	db.Do(t, `INSERT INTO outbox.sample SELECT at, 1, 1, 1, 1, 1, 1, 1, 1, task_type FROM (
		SELECT now() - h * interval '1 hour', 'OLD' FROM generate_series(1, 30) h UNION ALL
		SELECT now() - interval '25 hours' - n * interval '1 second', 'MANY' FROM generate_series(1, 6000) n
		) AS old (at, task_type)`)
	r := newRelay(t, db, job("sample"))
	for range 2 {
		began := clock(t, db)
		r.do(t, "maintain")
		rests(t, db, "sample", 60, began)
		db.Do(t, `UPDATE outbox.maintenance SET due_at = now()`)
	}
	is(t, db, "2002 1000", `SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE ready = 1 AND scheduled = 1))
		FROM outbox.sample WHERE task_type NOT IN ('OLD', 'MANY')`)
	is(t, db, "2007 23", `SELECT concat_ws(' ', count(*) FILTER (WHERE at < now() - interval '24 hours'),
		count(*) FILTER (WHERE task_type = 'OLD' AND at > now() - interval '24 hours'))
		FROM outbox.sample WHERE task_type IN ('OLD', 'MANY')`)
	for taskType, n := range map[string]int{"": 2, "OLD": 1} {
		got, err := relaytest.Admin(t, db.DB).Samples(t.Context(), admin.SampleQuery{Type: taskType, Last: 90 * time.Minute})
		if err != nil || len(got) != n {
			t.Fatalf("%q: %+v, %v; want %d samples", taskType, got, err, n)
		}
		s := got[n-1]
		others := s.Leased + s.Waiting + s.Dead + s.Finished + s.Failed
		if taskType == "" && (s.Ready != 1500 || s.Scheduled != 500 || others != 0 || s.OldestReady <= 0 ||
			!s.At.After(got[0].At)) {
			t.Errorf("the sum is %+v", s)
		}
	}
	db.Do(t, `DELETE FROM outbox.task`)
}

// A beat that waits for the pool says so once the lease is over, before the beat itself has failed; also
// once it has its connection, until it has come through.
func TestAHeartbeatThatWaitsForItsPoolSaysSo(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	pool := relaytest.Open(t, db.URL)
	pool.SetMaxOpenConns(1)
	r := newRelay(t, pool)
	r.Close()
	held, err := pool.Conn(t.Context())
	relaytest.Must(err)
	locks, err := db.Begin()
	relaytest.Must(err)
	_, err = locks.Exec(`SELECT FROM outbox.relay FOR UPDATE`)
	relaytest.Must(err)
	beaten := make(chan error, 1)
	go func() { beaten <- r.Beat(t.Context()) }()
	busy := func() bool { return errors.Is(r.Alive(r.now.Add(upkeep.LeaseDuration)), pg.ErrPoolBusy) }
	relaytest.Eventually(t, 8*time.Second, "the beat waits for the pool", busy)
	relaytest.Must(held.Close())
	relaytest.Eventually(t, 8*time.Second, "the beat waits for its row, or has failed", func() bool {
		return len(beaten) > 0 || db.Int(t, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE a.datname = current_database() AND NOT l.granted`) > 0
	})
	if still := busy(); !still && len(beaten) == 0 {
		t.Errorf("while the beat is under way: %v", r.Alive(r.now.Add(upkeep.LeaseDuration)))
	}
	relaytest.Must(locks.Rollback())
	if err := <-beaten; err != nil && !errors.Is(err, pg.ErrPoolBusy) && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err) // but on a busy machine
	}
}
