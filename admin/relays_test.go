package admin_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestRelaysAreListedWithWhatTheyRun(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		if got, err := client(t, db.DB).Relays(t.Context()); err != nil || len(got) != 0 {
			t.Errorf("without a relay: %v, %v", got, err)
		}
		s := newScene(t, db)
		// A relay that died while it ran a task and a batch; and one that has 300 leases and lost a connection.
		addRelay(t, db, deadRelay, "-1 minute", `{"A \"quoted\", type",B}`)
		addRelay(t, db, liveRelay, "1 hour", "{}")
		lease(t, db, liveRelay, 300)
		db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, lost_connection, task_ids, first_id, last_id) VALUES
			($3, gen_random_uuid(), $1, false, NULL, NULL, NULL),
			(1000000, gen_random_uuid(), $1, false, '{1000000,1000003}', 1000000, 1000003),
			($3, gen_random_uuid(), $2, true, NULL, NULL, NULL)`, deadRelay, liveRelay, s.ready)
		relays, err := client(t, db.DB).Relays(t.Context())
		if err != nil || len(relays) != 3 {
			t.Fatalf("%+v, %v; want three relays", relays, err)
		}
		gone := relays[2]
		real := relays[slices.IndexFunc(relays, func(r admin.Relay) bool { return slices.Contains(r.Types, "BATCH") })]
		for _, r := range relays {
			got := fmt.Sprint(r.Host != "", r.PID > 0, r.StartedAt.IsZero(), r.Alive, r.Workers, len(r.Runs))
			want := map[string]string{
				deadRelay: "true true false false 0 2", liveRelay: "true true false true 0 200",
				real.ID: "true true false true 20 3",
			}[r.ID]
			if got != want {
				t.Errorf("the relay %s: got %s, want %s", r.ID, got, want)
			}
		}
		if gone.ID != deadRelay || !slices.Equal(gone.Types, []string{`A "quoted", type`, "B"}) {
			t.Errorf("the last relay: %+v, want the dead one", gone)
		}
		var by []string
		for _, of := range append(taskview.RunsByType(gone), taskview.RunsByType(real)...) {
			by = append(by, fmt.Sprint(of.Type, " ", of.Tasks, " ", of.Lost, " ", len(of.Oldest.TaskIDs)))
		}
		want := []string{" 2 true 2", "NOBODYS 1 true 1", "BATCH 3 false 3", "LEASED 1 false 1", "TX 1 false 1"}
		if !slices.Equal(by, want) {
			t.Errorf("by type they run %q, want %q", by, want)
		}
		got, err := client(t, db.DB).Task(t.Context(), s.ready)
		if err != nil || len(got.Runs) != 2 || !got.Runs[0].Lost || !got.Runs[1].Lost {
			t.Errorf("the task with two lost runs: %+v, %v", got, err)
		}
		db.Do(t, `DELETE FROM outbox.running WHERE relay_id IN ($1, $2)`, deadRelay, liveRelay)
		db.Do(t, `DELETE FROM outbox.task WHERE task_type = 'HELD'`)
		db.Do(t, `DELETE FROM outbox.relay WHERE relay_id IN ($1, $2)`, deadRelay, liveRelay)
	})
}

// A relay that was killed counts as alive until its leases end; it is missing before that.
func TestARelayWithoutHeartbeatsIsMissingBeforeItIsDead(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	for alive, want := range map[string]string{
		"10 minutes": "true false 10s", "4 seconds": "true true 10s", "-5 minutes": "false false 10s",
	} {
		addRelay(t, db, deadRelay, alive, "{}")
		relays, err := client(t, db.DB).Relays(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := relays[0]
		if got := fmt.Sprint(r.Alive, r.Missing, r.AliveUntil.Sub(r.LastSeen)); got != want {
			t.Errorf("%s: got %s, want %s", alive, got, want)
		}
		db.Do(t, `DELETE FROM outbox.relay`)
	}
}

func TestALeaseIsLostWithItsRelayOrItsTime(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	addRelay(t, db, liveRelay, "1 hour", "{}")
	for _, c := range []struct {
		relay, until string
		lost         bool
	}{{liveRelay, "NULL", false}, {liveRelay, "now() + interval '1 hour'", false}, {deadRelay, "NULL", true},
		{liveRelay, "now() - interval '1 second'", true}} {
		lease(t, db, c.relay, 1)
		db.Do(t, `UPDATE outbox.task SET leased_until = `+c.until)
		id := int64(db.Int(t, `SELECT max(task_id) FROM outbox.task`))
		got, err := client(t, db.DB).Task(t.Context(), id)
		if err != nil || len(got.Runs) != 1 || got.Runs[0].Lost != c.lost {
			t.Errorf("%+v: %+v, %v", c, got.Runs, err)
		}
	}
	db.Do(t, `DELETE FROM outbox.task`)
}

func TestTypesAreThoseThatAnybodyKnows(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		enqueue(t, db, "ENQUEUED", number{1})
		enqueue(t, db, "PAUSED", number{1})
		for _, name := range []string{"PAUSED", "ONLY_PAUSED"} {
			if err := c.PauseType(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		db.Do(t, `INSERT INTO outbox.task_type (task_type, max_running, max_running_per_key, rate, rate_per)
			VALUES ('LIMITED', 7, 2, 30, 60000000)`)
		addRelay(t, db, deadRelay, "-1 minute", "{GONE,PAUSED}")
		addRelay(t, db, liveRelay, "1 hour", "{LIMITED,PAUSED}")
		addRelay(t, db, "ffffffff-0000-4000-8000-000000000000", "1 hour", "{LIMITED}")
		types, err := c.Types(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range types {
			types[i].OldestReady = 0
		}
		if want := []admin.Type{
			{TypeStats: outbox.TypeStats{Type: "ENQUEUED", Ready: 1}},
			{TypeStats: outbox.TypeStats{Type: "LIMITED"}, MaxRunning: 7, MaxRunningPerKey: 2, Rate: 30,
				RatePer: time.Minute, Relays: 2},
			{TypeStats: outbox.TypeStats{Type: "ONLY_PAUSED"}, Paused: true},
			{TypeStats: outbox.TypeStats{Type: "PAUSED", Ready: 1}, Paused: true, Relays: 1},
		}; !slices.Equal(types, want) {
			t.Errorf("got %+v, want %+v", types, want)
		}
		types[0].Dead, types[1].OldestReady = 5, time.Hour
		sum, want := taskview.Sum(types).TypeStats, outbox.TypeStats{Ready: 2, Dead: 5, OldestReady: time.Hour}
		if sum != want {
			t.Errorf("the sum is %+v, want %+v", sum, want)
		}
		db.Do(t, `DELETE FROM outbox.relay`)
	})
}

func TestSchedulesAreListedAsTheyAre(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c, at := client(t, db.DB), time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	db.Do(t, `INSERT INTO outbox.schedule
		(name, next_at, last_at, created_at, catch_up, task_type, payload, spec, timing, definition) VALUES
		('nightly', $1, NULL, $1, 'once', 'A', '{}', 'every 24h0m0s', 'x', 'x'),
		('ended', NULL, $1, $1, 'all', 'B', '{}', '', 'x', 'x')`, at)
	if err := c.PauseSchedule(t.Context(), "ended"); err != nil {
		t.Fatal(err)
	}
	got, err := c.Schedules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		for _, field := range []*time.Time{&got[i].NextAt, &got[i].LastAt, &got[i].CreatedAt} {
			*field = field.UTC()
		}
	}
	if want := []admin.Schedule{
		{Name: "ended", Type: "B", LastAt: at, CreatedAt: at, Paused: true, CatchUp: "all"},
		{Name: "nightly", Type: "A", Spec: "every 24h0m0s", NextAt: at, CreatedAt: at, CatchUp: "once"},
	}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPauseNeedsRightsOnOneTable(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE ROLE pauser_of_tests`)
	defer db.Do(t, `DROP OWNED BY pauser_of_tests; DROP ROLE pauser_of_tests`)
	db.Do(t, `GRANT USAGE ON SCHEMA outbox TO pauser_of_tests;
		GRANT SELECT, INSERT, UPDATE ON outbox.task_type TO pauser_of_tests`)
	tx := begin(t, db)
	if _, err := tx.Exec(`SET LOCAL ROLE pauser_of_tests`); err != nil {
		t.Fatal(err)
	}
	c := client(t, db.DB).In(tx)
	if err := errors.Join(c.PauseType(t.Context(), "T"), c.ResumeType(t.Context(), "T")); err != nil {
		t.Error(err)
	}
}

// A task that was asked to end is removed with its lease, and not run again.
func TestATaskThatWasCanceledIsNotHandedBack(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	lease(t, db, deadRelay, 2)
	db.Do(t, `INSERT INTO outbox.cancel (task_id) SELECT min(task_id) FROM outbox.task`)
	if n, err := client(t, db.DB).HandBack(t.Context(), deadRelay); n != 2 || err != nil {
		t.Errorf("handed back %d, %v", n, err)
	}
	db.Want(t, "1 ready", `SELECT count(*) || ' ' || min(state) FROM outbox.task`)
	db.Want(t, "1", `SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'canceled'`)
}
