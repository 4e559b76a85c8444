package admin_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/relaytest"
)

const (
	deadRelay = "dddddddd-0000-4000-8000-000000000000"
	liveRelay = "eeeeeeee-0000-4000-8000-000000000000"
)

func TestRelaysAreListedWithWhatTheyRun(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		if got, err := client(t, db.DB).Relays(t.Context()); err != nil || len(got) != 0 {
			t.Errorf("without a relay: %v, %v", got, err)
		}
		s := newScene(t, db)
		// A relay that died while it ran two tasks and a batch, and had one leased; and one that
		// lost a connection.
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, started_at, alive_until, task_types) VALUES
			($1, 'gone', 7, now() - interval '1 day', now() - interval '1 minute', '{"A \"quoted\", type",B}'), ($2, 'a', 8, now(), now() + interval '1 hour', '{}')`, deadRelay, liveRelay)
		db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, lost_connection, task_ids, first_id, last_id) VALUES
			($3, gen_random_uuid(), $1, false, NULL, NULL, NULL), (1000000, gen_random_uuid(), $1, false, '{1000000,1000003}', 1000000, 1000003),
			($3, gen_random_uuid(), $2, true, NULL, NULL, NULL)`, deadRelay, liveRelay, s.ready)
		db.Do(t, `INSERT INTO outbox.task (task_type, state, relay_id, lease_token, attempted_at) SELECT 'HELD', 'leased', $1, gen_random_uuid(), now() FROM generate_series(1, 300)`, liveRelay)
		relays, err := client(t, db.DB).Relays(t.Context())
		if err != nil || len(relays) != 3 {
			t.Fatalf("%+v, %v; want three relays", relays, err)
		}
		gone := relays[2]
		if gone.RelayID != deadRelay || gone.Alive || gone.Host != "gone" || gone.PID != 7 || !slices.Equal(gone.Types, []string{`A "quoted", type`, "B"}) || gone.Workers != 0 || gone.Connections != 0 ||
			!gone.AliveUntil.Before(time.Now()) || len(gone.Runs) != 2 {
			t.Errorf("the dead relay: %+v", gone)
		}
		for _, r := range gone.Runs {
			single := slices.Equal(r.TaskIDs, []int64{s.ready}) && r.Type == "NOBODYS"
			if !r.Lost || r.RelayID != deadRelay || !single && !(slices.Equal(r.TaskIDs, []int64{1000000, 1000003}) && r.Type == "") {
				t.Errorf("its run: %+v", r)
			}
		}
		at := slices.IndexFunc(relays, func(r admin.Relay) bool { return r.RelayID == liveRelay })
		if other := relays[at]; at > 1 || !other.Alive || len(other.Runs) != 200 {
			t.Errorf("the relay with 300 leases is at %d: alive %v with %d runs; want it before the dead one, with 200", at, other.Alive, len(other.Runs))
		}
		real := relays[1-at]
		if !real.Alive || real.Workers != 20 || real.PID == 0 || real.Host == "" || real.StartedAt.IsZero() || !slices.Contains(real.Types, "BATCH") {
			t.Errorf("the relay that runs: %+v", real)
		}
		for _, r := range real.Runs {
			if want := map[string]int{"BATCH": 3, "LEASED": 1, "TX": 1}[r.Type]; r.Lost || r.RelayID != real.RelayID || len(r.TaskIDs) != want {
				t.Errorf("its run: %+v", r)
			}
		}
		var by []string
		for _, of := range append(gone.ByType(), real.ByType()...) {
			by = append(by, fmt.Sprint(of.Type, " ", of.Tasks, " ", of.Lost, " ", len(of.Oldest.TaskIDs)))
		}
		if want := []string{" 2 true 2", "NOBODYS 1 true 1", "BATCH 3 false 3", "LEASED 1 false 1", "TX 1 false 1"}; !slices.Equal(by, want) {
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

func TestALeaseIsLostWithItsRelayOrItsTime(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ($1, 'a', 8, now() + interval '1 hour', '{}')`, liveRelay)
	for want, row := range map[bool][]string{
		false: {"'" + liveRelay + "', NULL", "'" + liveRelay + "', now() + interval '1 hour'"},
		true:  {"'" + deadRelay + "', NULL", "'" + liveRelay + "', now() - interval '1 second'"},
	} {
		for _, r := range row {
			var id int64
			if err := db.QueryRow(`INSERT INTO outbox.task (task_type, state, lease_token, relay_id, leased_until) VALUES ('A', 'leased', gen_random_uuid(), ` + r + `) RETURNING task_id`).Scan(&id); err != nil {
				t.Fatal(err)
			}
			if got, err := client(t, db.DB).Task(t.Context(), id); err != nil || len(got.Runs) != 1 || got.Runs[0].Lost != want {
				t.Errorf("%s: %+v, %v; want lost %v", r, got.Runs, err, want)
			}
		}
	}
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
		db.Do(t, `INSERT INTO outbox.task_type (task_type, max_running, rate, rate_per) VALUES ('LIMITED', 7, 30, 60000000)`)
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ($1, 'gone', 7, now() - interval '1 minute', '{GONE,PAUSED}'),
			($2, 'a', 8, now() + interval '1 hour', '{LIMITED,PAUSED}'), (gen_random_uuid(), 'b', 9, now() + interval '1 hour', '{LIMITED}')`, deadRelay, liveRelay)
		types, err := c.Types(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range types {
			types[i].OldestReady = 0
		}
		if want := []admin.Type{
			{TypeStats: outbox.TypeStats{Type: "ENQUEUED", Ready: 1}},
			{TypeStats: outbox.TypeStats{Type: "LIMITED"}, MaxRunning: 7, Rate: 30, RatePer: time.Minute, Relays: 2},
			{TypeStats: outbox.TypeStats{Type: "ONLY_PAUSED"}, Paused: true},
			{TypeStats: outbox.TypeStats{Type: "PAUSED", Ready: 1}, Paused: true, Relays: 1},
		}; !slices.Equal(types, want) {
			t.Errorf("got %+v, want %+v", types, want)
		}
		types[0].Scheduled, types[0].Leased, types[0].Waiting, types[0].Dead, types[0].Finished, types[0].Failed = 2, 3, 4, 5, 6, 7
		types[1].OldestReady = time.Hour
		if sum, want := admin.Sum(types).TypeStats, (outbox.TypeStats{Ready: 2, Scheduled: 2, Leased: 3, Waiting: 4, Dead: 5, Finished: 6, Failed: 7, OldestReady: time.Hour}); sum != want {
			t.Errorf("the sum is %+v, want %+v", sum, want)
		}
		db.Do(t, `DELETE FROM outbox.relay`)
	})
}

func TestSchedulesAreListedAsTheyAre(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
		db.Do(t, `INSERT INTO outbox.schedule (name, next_at, last_at, created_at, catch_up, task_type, payload, spec, timing, definition) VALUES
			('nightly', $1, NULL, $1, 'once', 'A', '{}', 'every 24h0m0s', 'x', 'x'), ('ended', NULL, $1, $1, 'all', 'B', '{}', '', 'x', 'x')`, at)
		if err := c.PauseSchedule(t.Context(), "ended"); err != nil {
			t.Fatal(err)
		}
		got, err := c.Schedules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range got {
			for _, field := range []*time.Time{&s.NextAt, &s.LastAt, &s.CreatedAt} {
				*field = field.UTC()
			}
			got[i] = s
		}
		if want := []admin.Schedule{{Name: "ended", Type: "B", LastAt: at, CreatedAt: at, Paused: true, CatchUp: "all"}, {Name: "nightly", Type: "A", Spec: "every 24h0m0s", NextAt: at, CreatedAt: at, CatchUp: "once"}}; !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
