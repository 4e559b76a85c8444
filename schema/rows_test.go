package schema

import (
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/invariants"
)

// What a relay hands back takes its runs from the journal, except those whose relays may live, and
// counts as failed if it is. The lost runs are in its timeline.
func TestATaskThatIsHandedBackLeavesTheJournal(t *testing.T) {
	db := migrated(t)
	const of, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	const lost, living = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
	const task = `{"task_id": 7, "task_type": "T", "state": "scheduled", "priority": 0, "attempt": 2, "payload": {},
		"run_us": 0, "created_us": 0, "reason": "handler", "claimed_attempt": 1`
	const undecided = `, "living": ["` + living + `"]`
	for name, c := range map[string]struct{ call, want string }{
		"put back": {`outbox.put_back('` + task + `}', 1000, %t, 1, '{` + living + `}', '` + of + `', NULL)`,
			"task lost 2; runs 7b 8a; "},
		"buried": {`outbox.bury('` + task + `}', 3, %t, 1, '{` + living + `}', '` + of + `', NULL)`,
			"dead_task lost 2; runs 8a; "},
		"finished with lost runs": {`outbox.keep('[` + task + undecided + `}]', 3600000000, '` + of + `')`,
			"done_task lost 2; runs 7a 7b 8a; "},
		"finished without lost runs": {`outbox.keep('[` + task + `}]', 3600000000, '` + of + `')`,
			"done_task; runs 7a 7b 8a; "},
	} {
		for _, failed := range []bool{false, true} {
			call, want := c.call, c.want
			if name == "put back" || name == "buried" {
				call = fmt.Sprintf(call, failed)
				if failed {
					want += "1 failed"
				}
			}
			tx, err := db.BeginTx(t.Context(), nil)
			noErr(t, err)
			if _, err := tx.Exec(`INSERT INTO outbox.running (task_id, token, relay_id)
				VALUES (7, $1, $3), (7, $2, $3), (8, $1, $3)`, lost, living, other); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(`SELECT ` + call); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := scan[string](t, tx, `SELECT concat(
				(SELECT string_agg(concat_ws(' ', place, (SELECT string_agg(concat_ws(' ', e ->> 'event', e ->> 'attempt'), ', ')
				  FROM jsonb_array_elements(timeline) e)), ', ')
				  FROM (SELECT 'task' AS place, timeline FROM outbox.task
				        UNION ALL SELECT 'dead_task', timeline FROM outbox.dead_task
				        UNION ALL SELECT 'done_task', timeline FROM outbox.done_task) AS t),
				'; runs ', (SELECT string_agg(concat(task_id, right(token::text, 1)), ' ' ORDER BY task_id, token)
				  FROM outbox.running),
				'; ', (SELECT string_agg(concat(tasks, ' ', kind), ', ') FROM outbox.counter_log WHERE kind = 'failed'))`)
			if got != want {
				t.Errorf("%s, failed %t: %s, want %s", name, failed, got, want)
			}
			_ = tx.Rollback()
		}
	}
}

// The journal has a single run, a batch that was lost with its relay, and a batch whose transaction is
// open: its ids are among those of the lost one, and none of its tasks is claimed again.
func TestTheJournalTellsARunWhichRunsOfItsTasksWereLost(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	migrate(t, db)
	const of, dead, token = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002",
		"00000000-0000-4000-8000-000000000003"
	claim := open(t, url)
	begin(t, claim, `SELECT pg_current_xact_id()`)
	run(t, db, `
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES
		  ('`+of+`', 'h', 1, now() + interval '1 hour', '{}'), ('`+dead+`', 'h', 2, now() - interval '1 hour', '{}');
		INSERT INTO outbox.running (task_id, token, relay_id, lost_connection) VALUES
		  (3, '`+dead+`', '`+dead+`', false), (4, '`+dead+`', '`+of+`', false), (5, '`+dead+`', '`+dead+`', true),
		  (6, '`+dead+`', '`+token+`', false);
		INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid) VALUES
		  (10, '`+dead+`', '`+dead+`', '{10,20,30}', 10, 30, '3'),
		  (15, '`+dead+`', '`+dead+`', '{15,16}', 15, 16, pg_snapshot_xmin(pg_current_snapshot()))`)
	const whole, split = " 10{10,20,30}-", " 10- 20- 30-" // the lost batch, and the rows of its tasks
	for _, c := range []struct {
		name, ids, earlier string
		lost               string // the journal of the lost batch afterwards
		fresh              string // of the ids, those without an earlier run
	}{
		{"a new task", "{1}", "", whole, "{1}"},
		{"several new tasks", "{1,2}", "", whole, "{1,2}"},
		{"far apart", "{1,1000}", "", whole, "{1,1000}"},
		{"before the batch", "{8,9}", "", whole, "{8,9}"},
		{"behind the batch", "{31}", "", whole, "{31}"},
		{"among its ids", "{11,25}", "", whole, "{11,25}"},
		{"its first task", "{10}", "10 died dead", split, "{}"},
		{"its last task", "{30}", "30 died dead", split, "{}"},
		{"a task of it and a new one", "{20,21}", "20 died dead", split, "{21}"},
		{"of another relay", "{3}", "3 died dead", whole, "{}"},
		{"of the same relay", "{4}", "4 ended lives", whole, "{}"},
		{"that lost its connection", "{5}", "5 ended dead", whole, "{}"},
		{"of a relay without a row", "{6}", "6 died 0", whole, "{}"},
		{"far from one with a history", "{3,1000}", "3 died dead", whole, "{1000}"},
	} {
		for _, kind := range []string{"single", "suspect", "batch"} {
			tx, err := db.BeginTx(t.Context(), nil)
			noErr(t, err)
			call := fmt.Sprintf(`outbox.record_batch(i, i[1], i[cardinality(i)], '%s', '%s', pg_current_xact_id())`, token, of)
			if kind != "batch" {
				call = fmt.Sprintf(`outbox.record_runs(i, i[1], i[cardinality(i)],
					array_fill('%s'::uuid, ARRAY[cardinality(i)]), array_fill(%v, ARRAY[cardinality(i)]), '%s')`,
					token, kind == "suspect", of)
			}
			got := scan[string](t, tx, `SELECT COALESCE(string_agg(concat_ws(' ', r.task_id,
				CASE WHEN not_died THEN 'ended' ELSE 'died' END,
				CASE WHEN alive_us > 0 THEN 'lives' WHEN alive_us < 0 THEN 'dead' ELSE '0' END), ', ' ORDER BY r.task_id), '')
				FROM (SELECT $1::bigint[] AS i) AS g, `+call+` AS r`, c.ids)
			if got != c.earlier {
				t.Errorf("%s, %s: earlier runs %q, want %q", c.name, kind, got, c.earlier)
			}
			begun := c.fresh
			if kind == "suspect" {
				begun = c.ids // each is about to run
			}
			want := c.lost + scan[string](t, tx, `SELECT COALESCE(string_agg(concat(' ', id, '+'), ''), '')
				FROM unnest($1::bigint[]) id`, begun)
			if kind == "batch" {
				want = c.lost
				if c.earlier == "" {
					want += scan[string](t, tx, `SELECT concat(' ', ($1::bigint[])[1], $1::bigint[], '+')`, c.ids)
				}
			}
			got = scan[string](t, tx, `SELECT string_agg(concat(' ', task_id, task_ids,
				CASE WHEN token = $1 THEN '+' ELSE '-' END), '' ORDER BY token = $1, task_id)
				FROM outbox.running WHERE task_id NOT IN (3, 4, 5, 6, 15) OR token = $1`, token)
			if got != want {
				t.Errorf("%s, %s: the journal is %q, want %q", c.name, kind, got, want)
			}
			_ = tx.Rollback()
		}
	}
}

func TestLostRunsAreThoseOfOtherRelaysThatDied(t *testing.T) {
	db := migrated(t)
	const of, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	const token = "00000000-0000-4000-8000-00000000000"
	run(t, db, `
		INSERT INTO outbox.running (task_id, token, relay_id, lost_connection, started_at, task_ids) VALUES
		  (7, '`+token+`1', '`+other+`', false, '2020-01-03', NULL), -- lost
		  (7, '`+token+`2', '`+other+`', false, '2020-01-01', NULL), -- lost before
		  (7, '`+token+`3', '`+of+`',    false, '2020-01-01', NULL), -- of the relay itself
		  (7, '`+token+`4', '`+other+`', true,  '2020-01-01', NULL), -- has lost its connection
		  (7, '`+token+`5', '`+other+`', false, '2020-01-01', NULL), -- of a relay that may live
		  (7, '`+token+`6', '`+other+`', false, '2020-01-01', '{7}'), -- of a batch
		  (8, '`+token+`1', '`+other+`', false, '2020-01-01', NULL)`)
	got := scan[string](t, db, `SELECT string_agg(
		concat_ws(' ', e ->> 'event', e ->> 'attempt', left(e ->> 'at', 10), e ->> 'relay'), ', ')
		FROM jsonb_array_elements(outbox.lost_runs(7, 4, '{`+token+`5}', '`+of+`')) AS e`)
	if want := "lost 5 2020-01-01 " + other + ", lost 6 2020-01-03 " + other; got != want {
		t.Errorf("lost runs %q, want %q", got, want)
	}
	if n := scan[int](t, db, `SELECT count(outbox.lost_runs(9, 4, '{}', '`+of+`'))`); n != 0 {
		t.Error("a task without runs has lost some")
	}
}

// A timeline in short is a letter for each event: r for redriven, R for replaced, others for failed.
func TestATimelineKeepsTheNewestEventsAndTheBeginOfTheTrouble(t *testing.T) {
	db := migrated(t)
	of := func(short string) string {
		var events []string
		for _, c := range short {
			kind := "failed"
			switch c {
			case 'r':
				kind = "redriven"
			case 'R':
				kind = "replaced"
			}
			events = append(events, fmt.Sprintf(`{"event": "%s", "c": "%c"}`, kind, c))
		}
		return "[" + strings.Join(events, ",") + "]"
	}
	for _, c := range []struct{ timeline, added, want string }{
		{"", "a", "a"},
		{"abc", "", "abc"},
		{"abcdefghijklmnopqst", "u", "abcdefghijklmnopqstu"},
		{"abcdefghijklmnopqstu", "v", "acdefghijklmnopqstuv"},
		{"acdefghijklmnopqstuv", "wx", "aefghijklmnopqstuvwx"},
		{"abcrdefghijklmnopqst", "u", "bcrdefghijklmnopqstu"},
		{"rdefghijklmnopqstuvw", "x", "rdfghijklmnopqstuvwx"},
		{"rdefghijklmnopqstuvw", "xy", "rdghijklmnopqstuvwxy"},
		{"rdRefghijklmnopqstuv", "wx", "rReghijklmnopqstuvwx"},
		{"defghijklmnopqstuvwx", "r", "efghijklmnopqstuvwxr"},
	} {
		got := scan[string](t, db, `SELECT string_agg(e ->> 'c', '' ORDER BY i) FROM jsonb_array_elements(outbox.add_events(NULLIF($1::jsonb, '[]'), $2::jsonb)) WITH ORDINALITY AS a (e, i)`,
			of(c.timeline), of(c.added))
		if got != c.want {
			t.Errorf("%s with %s: got %s, want %s", c.timeline, c.added, got, c.want)
		}
	}
	// Throttled runs in a row are one entry, so that they push out nothing.
	got := scan[string](t, db, `WITH RECURSIVE run (n, timeline) AS (
		SELECT 0, '[{"event": "redriven", "by": "ada"}]'::jsonb UNION ALL
		SELECT n + 1, outbox.add_events(timeline, jsonb_build_array(jsonb_build_object('event', CASE WHEN n IN (30, 31) THEN 'failed' ELSE 'throttled' END, 'attempt', n))) FROM run WHERE n < 60)
		SELECT string_agg(concat_ws(' ', e ->> 'event', e ->> 'attempt', e ->> 'times', (e ->> 'last')::timestamptz > (e ->> 'at')::timestamptz), ', ' ORDER BY i)
		  FROM run, jsonb_array_elements(timeline) WITH ORDINALITY AS a (e, i) WHERE n = 60`)
	if want := "redriven, throttled 29 30 t, failed 30, failed 31, throttled 59 28 t"; got != want {
		t.Errorf("throttled runs: %s, want %s", got, want)
	}
	const when = `SELECT concat((e ->> 'at')::timestamptz > now() - interval '1 minute', ' ', f ->> 'at')
		FROM (SELECT a -> 0 AS e, a -> 1 AS f FROM outbox.add_events(NULL, '[{"event": "failed"}, {"event": "lost", "at": "then"}]') AS a) AS b`
	if got := scan[string](t, db, when); got != "t then" {
		t.Errorf("the times are %s, want now and then", got)
	}
}

func TestEnqueuersAndClaimsDoNotWaitForEachOthersCounts(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url, "lock_timeout", "1s")
	migrate(t, db)
	begin(t, open(t, url), "INSERT INTO outbox.task (task_type) VALUES ('A')")
	begin(t, open(t, url), "INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (0, 'A', 'ready')")
	run(t, db, "INSERT INTO outbox.task (task_type) VALUES ('A')")
	begin(t, db, "UPDATE outbox.task SET state = 'scheduled'")
	run(t, open(t, url, "lock_timeout", "1s"), "INSERT INTO outbox.task (task_type) VALUES ('A')")
}

// However many tasks one statement deletes: each head of an ordering key leaves a row in
// headless_key, others none, and all are counted.
func TestEachHeadThatIsDeletedLeavesItsKeyHeadless(t *testing.T) {
	db := migrated(t)
	for _, n := range []int{1, 2, 3, 4, 50} {
		run(t, db, fmt.Sprintf(`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'KEYED', n FROM generate_series(1, %[1]d) n;
			INSERT INTO outbox.task (task_type, ordering_key) SELECT 'KEYED', n FROM generate_series(1, %[1]d) n;
			INSERT INTO outbox.task (task_type) SELECT 'PLAIN' FROM generate_series(1, %[1]d) n;
			UPDATE outbox.task SET state = 'ready' WHERE task_id IN (SELECT min(task_id) FROM outbox.task WHERE task_type = 'KEYED' GROUP BY ordering_key);
			TRUNCATE outbox.headless_key;
			DELETE FROM outbox.task`, n))
		const keys = `SELECT count(*) || ' ' || count(DISTINCT ordering_key) FROM outbox.headless_key WHERE task_type = 'KEYED'`
		if got, want := scan[string](t, db, keys), fmt.Sprintf("%d %d", n, n); got != want {
			t.Errorf("%d heads: %s rows of keys, want %s", n, got, want)
		}
		if wrong := scan[int](t, db, invariants.Miscounted); wrong != 0 {
			t.Errorf("%d heads: %d counts are not those of the rows", n, wrong)
		}
	}
}
