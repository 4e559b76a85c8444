package relay_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// plan is a node of EXPLAIN's.
type plan struct {
	Node     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []plan
}

// each calls f for the node and all below it.
func (p plan) each(f func(plan)) {
	f(p)
	for _, below := range p.Plans {
		below.each(f)
	}
}

// explain plans a statement, and runs it if analyze, once its session has the plans of the
// functions that it calls; what it does is rolled back.
func explain(t testing.TB, db *database, analyze bool, query string, args ...any) plan {
	t.Helper()
	tx := db.begin(t)
	defer tx.Rollback()
	return explainIn(t, tx, analyze, query, args...)
}

func explainIn(t testing.TB, tx *sql.Tx, analyze bool, query string, args ...any) plan {
	t.Helper()
	query = fmt.Sprintf("EXPLAIN (FORMAT JSON, ANALYZE %[1]t, BUFFERS %[1]t) %[2]s", analyze, query)
	var text string
	for range 2 {
		_, err1 := tx.Exec("SAVEPOINT here")
		err2 := tx.QueryRow(query, args...).Scan(&text)
		_, err3 := tx.Exec("ROLLBACK TO SAVEPOINT here")
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	var out []struct{ Plan plan }
	noErr(t, json.Unmarshal([]byte(text), &out))
	return out[0].Plan
}

// planned are arguments of the statements in statements, and the index that each must use.
type planned struct {
	index string
	args  []any
}

func plannedWith(limit, taskID int) map[string]planned {
	token := pq.Array([]string{someUUID})
	return map[string]planned{
		"claim":     {"", claimOf(limit, taskID, nil).args},
		"claim one": {"task_pkey", []any{"TX", taskID}},
		"poll": {"",
			append(append([]any{pq.Array([]string{"TX", "OTHER"}), pq.Array([]int64{1, 2})},
				relay.SpanArgs(taskID)...), 0)},
		"take over due": {"task_leased", []any{true}},
		"last": {"task_lane",
			[]any{pq.Array([]string{"TX", "OTHER"}), pq.Array([]int{0, 0}), pq.Array([]int{0, 0})}},
		"promote scheduled": {"task_scheduled", []any{"TX", limit}},
		"take over":         {"task_leased", []any{token}},
		"leases end":        {"task_leased", nil},
		"stranded":          {"task_leased", nil},
		"take stranded":     {"task_pkey", []any{pq.Array([]int{taskID})}},
		"stranded leases":   {"task_leased", nil},
		"dead relays":       {"task_leased", []any{someUUID}},
		"reap runs":         {"task_pkey", nil},
		"reap relays":       {"task_leased", []any{someUUID}},
		"sign off":          {"task_leased", []any{someUUID}},
		"unhandled":         {"task_lane", []any{pq.Array([]string{"OTHER"})}},
		"return lease":      {"task_pkey", []any{taskID, someUUID, "ready", 0, nil, nil, 0, nil, nil}},
		"lock slots":        {"task_pkey", []any{"TX", limit, "1000"}},
		"fill slots":        {"slot_pkey", []any{"TX", pq.Array([]int{1}), pq.Array([]int{taskID}), someUUID}},
		"dead lease":        {"task_pkey", []any{taskID, someUUID, `{"attempt": 1, "reason": "attempts"}`, 1, nil}},
		"begin suspects":    {"task_pkey", []any{"{1,2,3}", someUUID}},
		"extend":            {"task_pkey", []any{taskID, someUUID, 1000}},
		"hear":              {"task_pkey", []any{pq.Array([]int{taskID}), pq.Array([]int{taskID}), token}},
		"compare leases":    {"task_leased", []any{someUUID, pq.Array([]int{taskID}), token, 1000}},
		"free leases":       {"task_pkey", []any{pq.Array([]int{taskID}), token}},
		"remove canceled":   {"task_pkey", []any{pq.Array([]int{taskID})}},
		"key page":          {"task_pkey", []any{"", "", 1000}},
		"lock keys":         {"task_pkey", []any{"", "", "TX", "z", 1000}},
		"delete keys":       {"task_pkey", []any{pq.Array([]string{"(0,1)"})}},
		"lock back":         {"task_pkey", []any{taskID, 0, 0, "{}"}},
		"complete and keep": {"task_pkey",
			[]any{pq.Array([]int{taskID}), token, pq.Array([]int{1000}), pq.Array([]string{"done"}),
				pq.Array([]sql.NullString{{}}), pq.Array([]string{""})}},
		"lock heads":     {"", []any{"1000"}},
		"promote heads":  {"task_waiting", []any{limit, 0}},
		"stats":          {"task_due", nil},
		"stats, planned": {"task_scheduled", nil},
		"lease again":    {"task_pkey", []any{taskID, someUUID, 0, nil}},
	}
}

// leases are statements that are functions, whose plans cannot be seen. A claim by due time begins where
// the last such claim ended, behind dead entries.
func leases(limit, taskID, due int) map[string]statement {
	lease := func(due any, from ...int) statement {
		return leaseOf("TX", limit, someUUID, someUUID, time.Millisecond, due, from...)
	}
	finish := func(place string) statement {
		return statement{store.FinishSQL,
			[]any{pq.Array([]int{taskID}), "{\"" + place + "\"}", pq.Array([]string{someUUID}), "{1}"}}
	}
	return map[string]statement{"lease": lease(nil, taskID), "lease from": lease(nil, taskID, taskID),
		"lease by due time": lease(due, taskID), "finish": finish("(0,1)"), "finish what was moved": finish("(0,0)"),
		"expire": {store.ExpireSQL, []any{"{TX}", "{20}", "{}", true, 0, 0, limit, "late", nil}}}
}

const oldestDueSQL = `SELECT (extract(epoch FROM min(run_at)) * 1000000)::bigint FROM outbox.task`

// pagesOfFew is far less than the table has.
const pagesOfFew = 250

// sorts may sort: what they sort is a handful of relays or types, or a page of keys or heads.
var sorts = []string{"stats", "stats, planned", "dead relays", "unhandled", "key page", "lock keys", "promote heads"}

// I10: no statement of the relay reads the whole table of tasks, or sorts it, whatever the table
// was like when its statistics were taken.
func TestStatementsReachTasksThroughTheirIndexWithAnyStatistics(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	const large = 30_000
	queries := maps.Clone(statements)
	queries["stats"] = statsSQL(t)
	queries["stats, planned"] = statsSQL(t)
	type statistics struct {
		rows  int
		state string
	}
	for _, stats := range relaytest.Part([]statistics{{0, "ready"}, {1, "ready"}, {large, "both"}, {10, "both"},
		{large, "ready"}, {large, "scheduled"}}, 2) {
		stale(t, db, stats.rows, 1, stats.state)
		db.Do(t, `INSERT INTO outbox.task (task_type, state, run_at) SELECT 'TX', CASE n % 2
			WHEN 0 THEN 'ready' ELSE 'scheduled' END, now()
			FROM generate_series(1, $1) n`, large)
		db.Do(t, `UPDATE outbox.task SET state = 'leased', relay_id = $1, lease_token = $1 WHERE task_id % 100 = 0`, someUUID)
		taskID, due := db.Int(t, `SELECT max(task_id) FROM outbox.task`), db.Int(t, oldestDueSQL)
		for name, query := range queries {
			if name == "unhandled" && stats.rows < large {
				continue // it counts up to 1,000 once a minute: for so many a small table may be read as a whole
			}
			for _, limit := range relaytest.Part([]int{10, 1, 100}, 1) {
				c, ok := plannedWith(limit, taskID)[name]
				if !ok {
					t.Fatalf("no arguments for the statement %q", name)
				}
				var indexes, bad []string
				explain(t, db, false, query, c.args...).each(func(p plan) {
					indexes = append(indexes, p.Index)
					if p.Node == "Seq Scan" && p.Relation == "task" || strings.Contains(p.Node, "Sort") &&
						!slices.Contains(sorts, name) {
						bad = append(bad, p.Node)
					}
				})
				if bad != nil {
					t.Errorf("%s: limit %d, statistics of %v: plan has %v", name, limit, stats, bad)
				}
				if !slices.Contains(indexes, c.index) {
					t.Errorf("%s: limit %d, statistics of %v: plan uses %v, want %s", name, limit, stats, indexes, c.index)
				}
				if slices.Contains(indexes, "task_lane") && c.index == "task_pkey" {
					t.Errorf("%s: statistics of %v: plan reads the lane", name, stats)
				}
			}
		}
		for name, s := range leases(10, taskID-10_000, due) {
			if p := explain(t, db, true, s.query, s.args...); p.Hit+p.Read > pagesOfFew {
				t.Errorf("%s: statistics of %v: %d pages, want at most %d", name, stats, p.Hit+p.Read, pagesOfFew)
			}
		}
	}
}

// I10, measured in pages: what a claim and a poll read is the same with a backlog fifty times as
// large.
func TestTheCostOfAClaimDoesNotDependOnTheBacklog(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	const large = 50_000
	db := newDatabase(t)
	cost := map[string]int{}
	for _, ready := range []int{1000, large} {
		stale(t, db, ready, ready, "ready")
		db.Do(t, `VACUUM ANALYZE outbox.task`)
		middle := db.Int(t, `SELECT (min(task_id) + max(task_id)) / 2 FROM outbox.task`)
		all := leases(1, middle, 0)
		all["claim by due time"] = claimOf(1, 0, 0)
		all["stats"] = statement{statsSQL(t), nil}
		for _, name := range []string{"claim", "claim one", "poll", "last"} {
			all[name] = statement{statements[name], plannedWith(1, middle)[name].args}
		}
		for name, s := range all {
			most := 1000
			if small, ok := cost[name]; ok {
				most = 2*small + 10
			}
			// While autovacuum has a snapshot, for whatever table, VACUUM leaves the deleted rows.
			what := fmt.Sprintf("%s reads at most %d pages at %d ready tasks", name, most, ready)
			relaytest.Eventually(t, 10*time.Second, what, func() bool {
				p := explain(t, db, true, s.query, s.args...)
				cost[name] = p.Hit + p.Read
				if cost[name] > most {
					db.Do(t, `VACUUM outbox.task`)
				}
				return cost[name] <= most
			})
		}
	}
}

// I10: beside a forgotten transaction a table has many pages and, by its statistics, few rows, so
// the planner would take reading all of it for cheap. Claims and polls read none of what was
// claimed.
func TestBesideAForgottenTransactionNothingReadsWhatWasClaimed(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	const dead, alive, most = 40_000, 100, 100 // pages: the dead rows fill hundreds
	db := newDatabase(t)
	holdSnapshot(t, db)
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'TX' FROM generate_series(1, $1::int)`, dead)
	db.Do(t, `DELETE FROM outbox.task`)
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'TX' FROM generate_series(1, $1::int)`, alive)
	db.Do(t, `VACUUM ANALYZE outbox.task`)
	db.Do(t, `INSERT INTO outbox.headless_key (task_type, ordering_key) SELECT 'TX', n FROM generate_series(1, $1) n`, dead)
	db.Do(t, `DELETE FROM outbox.headless_key`)
	request := db.Int(t, `SELECT pg_sequence_last_value('outbox.headless_key_headless_key_id_seq')`)
	first := db.Int(t, `SELECT min(task_id) FROM outbox.task`)
	read := func(name, query string, args ...any) {
		pages := math.MaxInt
		for range 3 { // the catalogue may be cold, and is again after each statement of autovacuum's
			p := explain(t, db, true, query, args...)
			pages = min(pages, p.Hit+p.Read)
		}
		if pages > most {
			t.Errorf("beside %d dead rows the %s reads %d pages, want at most %d", dead, name, pages, most)
		}
	}
	for _, name := range []string{"poll", "claim", "claim one"} {
		args := plannedWith(10, first)[name].args
		if name == "poll" {
			args[len(args)-1] = request
		}
		read(name, statements[name], args...)
	}
	byDue := claimOf(10, first, db.Int(t, oldestDueSQL))
	read("claim by due time", byDue.query, byDue.args...)
}

// sent are the statements of a relay, by the names in their comments.
var sent = relaytest.Statements("internal/store", "internal/upkeep", "relay")

// statements are those on the table of tasks, for the tests of their plans. A lease, a
// claim of one task, Complete and the end of leases are functions, whose plans are theirs.
var statements = func() map[string]string {
	out := map[string]string{}
	for name, comment := range map[string]string{
		"claim": "claim", "claim one": "claim one task", "poll": "poll", "last": "poll the ends of lanes",
		"promote scheduled": "promote scheduled tasks", "stranded leases": "find leases of dead relays",
		"return lease": "end a lease", "dead lease": "end a lease in the dead letters", "lease again": "run a leased task again",
		"begin suspects": "count the attempts of suspects", "extend": "extend a lease",
		"hear": "hear what became of running tasks", "compare leases": "compare leases",
		"free leases": "free leases that nobody runs", "remove canceled": "remove canceled tasks",
		"complete and keep": "complete leased tasks and keep them", "lock back": "lock a task whose claim is gone",
		"lock heads": "lock the promotion of heads", "promote heads": "promote waiting tasks to heads",
		"lock slots": "lock slots of a type", "fill slots": "fill slots with leases",
		"take over due": "whether leases are to be taken over", "take over": "take leases over from dead relays",
		"dead relays": "lock dead relays", "leases end": "end leases that ran out",
		"stranded": "lock leases of relays that have no row", "take stranded": "take over leases of relays that have no row",
		"unhandled": "types that no living relay has a handler for", "sign off": "sign off",
		"reap runs": "reap runs of tasks that are gone", "reap relays": "reap relays that died long ago",
		"key page": "read a page of unique keys", "lock keys": "lock unique keys of tasks that are gone",
		"delete keys": "delete unique keys of tasks that are gone",
	} {
		if out[name] = sent[comment]; out[name] == "" {
			panic("there is no statement to " + comment)
		}
	}
	return out
}()

type statement struct {
	query string
	args  []any
}

// claimOf claims up to limit tasks of the type TX: from a task on, or those that have been due longest.
func claimOf(limit, from int, due any) statement {
	return statement{store.ClaimSQL, []any{"TX", 0, 0, from, 0, limit, due, "0", "0", "0"}}
}

// leaseOf leases up to limit tasks from tasks on, in turn; or those that have been due longest.
func leaseOf(taskType string, limit int, relayID, token string, length time.Duration, due any, from ...int) statement {
	var until any
	if length > 0 {
		until = length.Microseconds()
	}
	if due == nil {
		due = "NULL"
	}
	places := make([]string, len(from))
	for i, id := range from {
		places[i] = fmt.Sprintf("{0,0,%d,0,%v}", id, due)
	}
	return statement{store.LeaseSQL, []any{taskType, limit, relayID, token, until, 1000, 0,
		"{" + strings.Join(places, ",") + "}"}}
}
