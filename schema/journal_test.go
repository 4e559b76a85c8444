package schema

import (
	"fmt"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

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
			if err != nil {
				t.Fatal(err)
			}
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
	db := open(t, pgtest.Database(t))
	migrate(t, db)
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
