package admin_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// huge makes a database with n tasks of the type A in each state that many tasks may be in, with a few
// of the type RARE behind, and of as many dead and finished ones. Triggers do not fire: counts are
// written for the types.
func huge(t *testing.T, n int) *database {
	t.Helper()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, strings.NewReplacer("$n", fmt.Sprint(n), "$relay", "'"+liveRelay+"'::uuid").Replace(`
		SET session_replication_role = replica;
		INSERT INTO outbox.task (task_type, payload, state, run_at, priority, attempt, ordering_key, relay_id, lease_token)
			SELECT CASE WHEN i > $n - 50 THEN 'RARE' ELSE 'A' END, '{"user_id": 12345, "text": "that of an ordinary task"}',
			       CASE s.state WHEN 'retrying' THEN 'scheduled' ELSE s.state END,
			       CASE s.state WHEN 'scheduled' THEN now() + i * interval '1 second'
			         WHEN 'retrying' THEN now() + ($n + i) * interval '1 second' ELSE now() END,
			       i % 3, CASE s.state WHEN 'scheduled' THEN 0 WHEN 'retrying' THEN 1 ELSE i % 2 END,
			       CASE s.state WHEN 'waiting' THEN 'key ' || i % 1000 END, CASE s.state WHEN 'leased' THEN $relay END,
			       CASE s.state WHEN 'leased' THEN $relay END
			  FROM generate_series(1, $n) i, unnest('{ready,scheduled,retrying,waiting,leased}'::text[]) s (state)
			 WHERE s.state <> 'leased' OR i > $n - 300;
		INSERT INTO outbox.dead_task
			(task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
			SELECT 100000000 + i, now(), now(), now() - i * interval '1 second', 0, 1, 1, 'handler',
			       CASE WHEN i > $n - 50 THEN 'RARE' ELSE 'A' END, '{}', 'boom' FROM generate_series(1, $n) i;
		INSERT INTO outbox.done_task
			(task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
			SELECT 200000000 + i, now(), now(), now(), now() + interval '1 day', 0, 1,
			       CASE WHEN i <= 50 THEN 'RARE' ELSE 'A' END, '{}' FROM generate_series(1, $n) i;
		INSERT INTO outbox.counter (task_type, kind, tasks, arrived)
			SELECT a, k, $n, 1 FROM unnest('{A,RARE}'::text[]) a,
				unnest('{ready,scheduled,retrying,waiting,dead,leased,failed}'::text[]) k;
		INSERT INTO outbox.sample SELECT now() - m * interval '1 minute', 1, 1, 1, 1, 1, 1, 1, 1, a
			FROM generate_series(1, 1440) m, unnest('{"",A,RARE,B,C,D,E,F,G,H}'::text[]) a;
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
			VALUES ($relay, 'a', 8, now() + interval '1 hour', '{A,RARE}');
		INSERT INTO outbox.audit (actor, tool, action, target) SELECT 'ada', 'cli', 'pause', 'TYPE ' || i
			FROM generate_series(1, 2000) i;
		INSERT INTO outbox.running (task_id, token, relay_id)
			SELECT i, gen_random_uuid(), $relay FROM generate_series(1, 300) i;
		SELECT setval('outbox.home', oid::bigint) FROM pg_database WHERE datname = current_database();
		SET session_replication_role = origin`))
	// As if the sample of ANALYZE had met no task of RARE: a generic plan assumes a single type then.
	for _, table := range []string{"task", "dead_task", "done_task"} {
		db.Do(t, `ALTER TABLE outbox.`+table+` ALTER task_type SET (n_distinct = 1)`)
	}
	for _, table := range []string{"task", "dead_task", "done_task", "running", "relay", "sample", "counter", "audit"} {
		db.Do(t, `VACUUM ANALYZE outbox.`+table)
	}
	return db
}

// I10 of what operators see: a page, a task and the lists of relays and types cost the same
// wherever they are, with 30,000 tasks in each state as with
// 1,000,000 (OUTBOX_TEST_LONG=1).
func TestEveryStatementCostsTheSameAtAnyNumberOfTasks(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	n := 30_000
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		n = 1_000_000
	}
	db := huge(t, n)
	for name, call := range calls(t, db, n) {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} { // as of a driver that keeps statements
			rowsRead(t, db, name, mode, call)
		}
	}
	db.Do(t, `DELETE FROM pg_statistic WHERE starelid = 'outbox.task'::regclass`) // a restore brings none
	for action, take := range takers {
		if deadTakers[action] == nil {
			rowsRead(t, db, action+" without statistics", "auto", call{3 * 10_000, func(c *admin.Client) error {
				_, err := take(c, t.Context(), admin.Filter{Error: "no such"},
					admin.Bulk{Progress: func(admin.BulkResult) bool { return false }})
				return err
			}})
		}
	}
}

// call is one of a client that may read so many rows.
type call struct {
	rows int
	do   func(*admin.Client) error
}

// rowsRead makes a call, and fails if it reads a table as a whole, or more rows than it may.
func rowsRead(t *testing.T, db *database, name, mode string, call call) {
	t.Helper()
	tx := begin(t, db)
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SET LOCAL plan_cache_mode = ` + mode); err != nil {
		t.Fatal(err)
	}
	read := func() (scans, rows int) {
		err := tx.QueryRow(`SELECT sum(seq_tup_read + idx_tup_fetch), COALESCE(sum(seq_scan) FILTER (WHERE relname IN
			('task', 'dead_task', 'done_task', 'sample', 'unique_key', 'audit')), 0)
			FROM pg_stat_xact_user_tables WHERE schemaname = 'outbox'`).Scan(&rows, &scans)
		if err != nil {
			t.Fatal(err)
		}
		return scans, rows
	}
	scansBefore, rowsBefore := read()
	if err := call.do(client(t, db.DB).In(tx)); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	scans, rows := read()
	scans, rows = scans-scansBefore, rows-rowsBefore
	if scans > 0 || rows > call.rows {
		t.Errorf("%s, %s: %d scans of tables and %d rows, want none and %d rows", name, mode, scans, rows, call.rows)
	}
}

// calls are all reads and bulk actions, at the beginning, in the middle and at the end of lists.
func calls(t *testing.T, db *database, n int) map[string]call {
	t.Helper()
	ctx, c := t.Context(), client(t, db.DB)
	middle := int64(db.Int(t, `SELECT max(task_id) / 2 FROM outbox.task`))
	all := map[string]call{
		"task": {400, func(c *admin.Client) error { _, err := c.Task(ctx, middle); return err }},
		"why":  {4000, func(c *admin.Client) error { _, err := c.Why(ctx, middle); return err }},
		"why, behind": {4000, func(c *admin.Client) error {
			_, err := c.Why(ctx, int64(db.Int(t, `SELECT max(task_id) FROM outbox.task WHERE state = 'waiting'`)))
			return err
		}},
		"retry groups": {2 * 10_000, func(c *admin.Client) error {
			_, err := c.ErrorGroups(ctx, admin.TaskQuery{Filter: admin.Filter{Type: "A", State: admin.StateRetrying}})
			return err
		}},
		"payload":   {10, func(c *admin.Client) error { _, err := c.Payload(ctx, middle); return err }},
		"relays":    {2000, func(c *admin.Client) error { _, err := c.Relays(ctx); return err }},
		"types":     {300, func(c *admin.Client) error { _, err := c.Types(ctx); return err }},
		"schedules": {10, func(c *admin.Client) error { _, err := c.Schedules(ctx); return err }},
		"newest":    {1000, func(c *admin.Client) error { _, err := c.Tasks(ctx, admin.TaskQuery{}); return err }},
		"samples": {100, func(c *admin.Client) error {
			_, err := c.Samples(ctx, admin.SampleQuery{Type: "A", Last: time.Hour})
			return err
		}},
	}
	for state, o := range listed {
		rows := 400
		if state == admin.StateScheduled {
			rows *= 20 // it passes over retrying ones
		}
		places := map[string][]string{"A": {""}, "RARE": {""}}
		if state == admin.StateDead || state == admin.StateFinished {
			places[""] = []string{""}
		}
		if state != admin.StateLeased {
			for _, at := range []int{n / 2, n - 100} {
				task, err := c.Task(ctx, int64(db.Int(t, `SELECT task_id `+o.order+` OFFSET $1 LIMIT 1`, at)))
				if err != nil {
					t.Fatal(err)
				}
				places["A"] = append(places["A"], admin.PlaceOf(task))
			}
		}
		for taskType, places := range places {
			for _, place := range places {
				all[fmt.Sprint(state, " ", taskType, " ", place)] = call{rows, func(c *admin.Client) error {
					_, err := c.Tasks(ctx, admin.TaskQuery{Filter: admin.Filter{Type: taskType, State: state}, After: place})
					return err
				}}
			}
		}
	}
	letter, err := c.Task(ctx, int64(100_000_000+n/2))
	if err != nil {
		t.Fatal(err)
	}
	at := admin.PlaceOf(letter)
	for name, f := range map[string]admin.Filter{
		"of all":        {All: true},
		"of ids":        {IDs: []int64{1, 2, letter.ID}},
		"of RARE":       {Type: "RARE"},
		"by time":       {Since: letter.EndedAt, Before: letter.EndedAt.Add(time.Minute)},
		"by age":        {OlderThan: time.Duration(n-5000) * time.Second},
		"by error":      {Error: "boom"},
		"of none":       {Error: "no such", Type: "A"},
		"of none since": {Error: "no such", Since: letter.EndedAt.Add(-time.Hour)},
	} {
		f.State = admin.StateDead
		all["list "+name] = call{2 * 3000, func(c *admin.Client) error {
			_, err := c.Tasks(ctx, admin.TaskQuery{Filter: f, MaxScan: 2000, Limit: 1000})
			return err
		}}
		all["count "+name] = call{2 * 3000, func(c *admin.Client) error {
			_, err := c.Count(ctx, admin.TaskQuery{Filter: f, After: at, MaxScan: 2000})
			return err
		}}
		for action, take := range deadTakers {
			all[action+" "+name] = call{2 * 10_000, func(c *admin.Client) error {
				_, err := take(c, ctx, f, admin.Bulk{After: at, Progress: func(admin.BulkResult) bool { return false }})
				return err
			}}
		}
	}
	for name, f := range map[string]admin.Filter{
		"of all": {All: true}, "of A": {Type: "A"}, "of RARE": {Type: "RARE"},
		"of ids": {IDs: []int64{200_000_001, 7}}, "old": {OlderThan: time.Hour},
		"with a payload": {Payload: []byte(`{"no": 1}`)},
	} {
		for _, after := range []string{"", "oldest." + fmt.Sprint(200_000_000+n/2)} {
			all["purge finished "+name+" "+after] = call{2 * 10_000, func(c *admin.Client) error {
				o := admin.Bulk{After: after, Progress: func(admin.BulkResult) bool { return false }}
				_, err := c.PurgeFinished(ctx, f, o)
				return err
			}}
		}
	}
	for name, f := range map[string]admin.Filter{
		"of none": {Error: "no such"}, "of RARE": {Type: "RARE"},
		"waiting":  {State: admin.StateWaiting, Type: "A", Error: "x"},
		"retrying": {State: admin.StateRetrying, Type: "A", Error: "x"}, "finished": {State: admin.StateFinished, Error: "x"},
		"with a payload": {Payload: []byte(`{"no": 1}`)}, "old": {OlderThan: time.Hour},
	} {
		all["search "+name] = call{3 * 2 * 3000, func(c *admin.Client) error {
			_, err := c.Tasks(ctx, admin.TaskQuery{Filter: f, MaxScan: 2000})
			return err
		}}
		all["count of a search "+name] = call{3 * 2 * 3000, func(c *admin.Client) error {
			_, err := c.Count(ctx, admin.TaskQuery{Filter: f, MaxScan: 2000})
			return err
		}}
		if f.State == admin.StateFinished {
			continue
		}
		for action, take := range takers {
			if deadTakers[action] != nil || f.State == admin.StateWaiting && action == "run_now" {
				continue
			}
			all[action+" "+name] = call{3 * 10_000, func(c *admin.Client) error {
				o := admin.Bulk{After: "oldest." + fmt.Sprint(middle), Progress: func(admin.BulkResult) bool { return false }}
				_, err := take(c, ctx, f, o)
				return err
			}}
		}
	}
	return all
}
