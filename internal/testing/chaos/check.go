//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/invariants"
)

// check compares what producers were told with what happened.
func check(a *arena, o options) error {
	if err := loadRecords(a); err != nil {
		return err
	}
	if err := sessionsEnd(a); err != nil {
		return err
	}
	queries := checks{}
	for _, of := range checksOf {
		if o.worst() <= of.worst {
			maps.Copy(queries, of.checks)
		}
	}
	if fakesClock(o) {
		delete(queries, early)
	}
	if o.only("forged") {
		if err := noErrors(a); err != nil {
			return err
		}
	}
	if err := examples(a, queries); err != nil {
		return err
	}
	for name, query := range invariants.Always {
		var n int
		if err := a.row(&n, query); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if n != 0 {
			a.violate(name, fmt.Sprint(n, " times"))
		}
	}
	crowded, err := app.ReadCrowded(a.dir)
	if err != nil {
		return err
	}
	a.violate("tasks of a key beyond its limit", crowded...)
	late, err := app.ReadBegunLate(a.dir)
	if err != nil {
		return err
	}
	a.violate("tasks that began after they had expired", late...)
	if err := countExpired(a); err != nil {
		return err
	}
	if a.counts["tasks "+app.Acked] == 0 {
		a.violate("nothing was enqueued", "no task was acknowledged")
	}
	for _, fault := range o.faults {
		if a.done[fault] == 0 && a.failed[fault] > 0 {
			a.violate("faults that were never done", fault)
		}
	}
	return countStarts(a)
}

// examples runs checks.
func examples(a *arena, queries checks) error {
	for name, query := range queries {
		var found []string
		query = `SELECT array_agg(coalesce(example, '')) FROM (` + query + `) AS c (example)`
		if err := a.row(pq.Array(&found), query); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		a.violate(name, found...)
	}
	return nil
}

// noErrors checks that no relay has logged an error but of a task that expired.
func noErrors(a *arena) error {
	for _, s := range a.relays {
		text, err := os.ReadFile(filepath.Join(a.dir, s.name+".log"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "level=ERROR") && !strings.Contains(line, "reason=expired") {
				a.violate("errors that relays have logged", strings.TrimSpace(line))
			}
		}
	}
	return nil
}

// countExpired adds the tasks that did not begin in time to the counts of the report.
func countExpired(a *arena) error {
	var n int
	if err := a.row(&n, `SELECT count(*) FROM outbox.dead_task WHERE reason = 'expired'`); err != nil {
		return err
	}
	a.count("tasks that expired", n)
	return nil
}

// sessionsEnd waits for the end of the app's sessions, which is a moment after their processes'. A
// check finds those that stay.
func sessionsEnd(a *arena) error {
	for range 50 {
		var n int
		if err := a.row(&n, `SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'`); err != nil || n == 0 {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// loadRecords writes what producers and the outside world know to tables.
func loadRecords(a *arena) error {
	all, err := app.ReadLedgers(a.dir)
	if err != nil {
		return err
	}
	var ks, kinds, outcomes []string
	for _, t := range all {
		ks, kinds, outcomes = append(ks, t.K), append(kinds, t.Kind), append(outcomes, t.Outcome)
		a.count("tasks "+strings.ReplaceAll(t.Outcome, "_", " "), 1)
	}
	calls, err := app.ReadCalls(a.dir)
	if err != nil {
		return err
	}
	var called []string
	var times []int
	for k, n := range calls {
		called, times = append(called, k), append(times, n)
		a.count("calls", n)
		a.count("repeated calls", n-1)
	}
	if err := loadEvents(a); err != nil {
		return err
	}
	return errors.Join(
		a.do(`INSERT INTO ledger SELECT * FROM unnest($1::text[], $2::text[], $3::text[])`,
			pq.Array(ks), pq.Array(kinds), pq.Array(outcomes)),
		a.do(`INSERT INTO call SELECT * FROM unnest($1::text[], $2::int[])`, pq.Array(called), pq.Array(times)),
		a.do(`CREATE INDEX ON ledger (k); CREATE INDEX ON effect (k); CREATE INDEX ON call (k); CREATE INDEX ON event (k);
			ANALYZE ledger, effect, call, event, business`))
}

// loadEvents writes the events that the broker has to a table.
func loadEvents(a *arena) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all, err := a.broker.events(ctx)
	if err != nil {
		return err
	}
	for target, of := range all {
		var ks, keys []string
		var seqs []int64
		for _, e := range of {
			ks, keys, seqs = append(ks, e.K), append(keys, e.Key), append(seqs, int64(e.Seq))
		}
		a.count("events", len(of))
		err := a.do(`INSERT INTO event SELECT k, $1, key, seq, place FROM unnest($2::text[], $3::text[], $4::int[])
			WITH ORDINALITY AS e (k, key, seq, place)`, target, pq.Array(ks), pq.Array(keys), pq.Array(seqs))
		if err != nil {
			return err
		}
	}
	return nil
}

// lostOnCrash is how much of the journal, which commits asynchronously, a crash of the server may
// lose: three times wal_writer_delay, and the end of the process before that.
const lostOnCrash = 1500 * time.Millisecond

// countStarts checks how often poison was started in all relays.
func countStarts(a *arena) error {
	all, err := app.ReadStarts(a.dir)
	if err != nil {
		return err
	}
	for k, p := range all {
		most := app.PoisonStarts
		if p.How == app.PoisonBackend {
			most += 9 // lost connections, of which the tenth is the end
		}
		for _, at := range p.Starts {
			if slices.ContainsFunc(a.crashes, func(c time.Time) bool { return c.After(at) && c.Sub(at) < lostOnCrash }) {
				most++
			}
		}
		starts := len(p.Starts)
		a.count("starts of poison", starts)
		example := fmt.Sprintf("%s (%s): %d times", k, p.How, starts)
		if starts > most {
			a.violate("poison that was started too often", example)
		}
	}
	return nil
}

// A query of checks returns an example of each thing that must not be, in one column.
type checks map[string]string

// checksOf are for runs whose faults have this harm at worst. A later query replaces one of its name.
var checksOf = []struct {
	worst  harm
	checks checks
}{{blamed, always}, {blameless, ofBlameless}, {repeated, ofRepeated}, {quiet, ofQuiet}, {calm, ofCalm}}

// early cannot be checked if the clock was set back.
const early = "delayed tasks that ran early"

var always = checks{
	"lost tasks: enqueued, and neither done nor dead": `SELECT k FROM ledger l
		WHERE outcome = 'acked' AND kind NOT IN ('KEYED', 'PERIOD') AND NOT EXISTS (SELECT FROM effect e WHERE e.k = l.k)
		AND NOT EXISTS (SELECT FROM call s WHERE s.k = l.k AND l.kind = 'PLAIN')
		AND NOT EXISTS (SELECT FROM event e WHERE e.k = l.k)
		AND NOT EXISTS (SELECT FROM outbox.dead_task d WHERE plain_payload(d.payload) ->> 'k' = l.k)`,
	"results that are lost, or another task's": `SELECT k FROM effect e WHERE kind IN ('LEASED', 'ORDERED')
		AND NOT EXISTS (SELECT FROM outbox.done_task d WHERE d.task_id = e.task_id AND d.result #>> '{}' = e.k)
		UNION ALL SELECT plain_payload(payload) ->> 'k' FROM outbox.done_task
		WHERE result #>> '{}' IS DISTINCT FROM plain_payload(payload) ->> 'k'`,
	"payloads of a type with codecs that are stored plain": `SELECT payload::text FROM outbox.done_task
		WHERE task_type = 'LEASED' AND (jsonb_typeof(payload) <> 'string' OR headers ->> 'outbox-codec' IS NULL)`,
	"unique keys that were used twice within their period": `SELECT ordering_key FROM effect WHERE kind = 'PERIOD'
		GROUP BY ordering_key HAVING count(*) > 1`,
	"lost tasks: of a unique key with a period none ran": `SELECT 'period-' || split_part(k, '-', 2)::int / 10
		FROM ledger WHERE outcome = 'acked' AND kind = 'PERIOD'
		EXCEPT SELECT ordering_key FROM effect WHERE kind = 'PERIOD'`,
	"tasks that are left": `SELECT task_type || ' ' || state || ' ' || (plain_payload(payload) ->> 'k') FROM outbox.task
		WHERE task_type <> 'TICK'`,
	"duplicated effects": `SELECT k || ', ' || count(*) || ' times' FROM effect GROUP BY k HAVING count(*) > 1`,
	"ghosts: effects of what was rolled back": `SELECT k FROM effect JOIN ledger USING (k)
		WHERE outcome = 'rolled_back'`,
	"calls for what was rolled back": `SELECT k FROM call JOIN ledger USING (k)
		WHERE outcome = 'rolled_back'`,
	"unexpected effects: of what nobody enqueued": `SELECT k FROM effect e
		WHERE NOT EXISTS (SELECT FROM ledger l WHERE l.k = e.k)`,
	"events of what was rolled back": `SELECT k FROM event JOIN ledger USING (k) WHERE outcome = 'rolled_back'`,
	"events that overtook another": `SELECT k || ': ' || seq || ' after ' || before FROM (
		SELECT k, seq, lag(seq) OVER (PARTITION BY ordering_key ORDER BY place) AS before FROM event
		 WHERE k NOT IN (SELECT l.k FROM ledger l WHERE outcome = 'unknown')) o WHERE seq < before`,
	"business rows of what was rolled back": `SELECT k FROM business JOIN ledger USING (k)
		WHERE outcome = 'rolled_back'`,
	"business rows that are lost": `SELECT k FROM ledger l
		WHERE outcome = 'acked' AND NOT EXISTS (SELECT FROM business b WHERE b.k = l.k)`,
	"unknown commits: a business row, and no work": `SELECT k FROM ledger l JOIN business USING (k)
		WHERE outcome = 'unknown' AND kind NOT IN ('KEYED', 'PERIOD')
		AND NOT EXISTS (SELECT FROM effect e WHERE e.k = l.k)
		AND NOT EXISTS (SELECT FROM call s WHERE s.k = l.k AND l.kind = 'PLAIN')
		AND NOT EXISTS (SELECT FROM event e WHERE e.k = l.k)
		AND NOT EXISTS (SELECT FROM outbox.dead_task d WHERE plain_payload(d.payload) ->> 'k' = l.k)`,
	"unknown commits: work, and no business row": `SELECT k FROM (SELECT k FROM effect UNION ALL SELECT k FROM call
		UNION ALL SELECT k FROM event UNION ALL SELECT plain_payload(payload) ->> 'k' FROM outbox.dead_task) e
		WHERE NOT EXISTS (SELECT FROM business b WHERE b.k = e.k)`,
	"accounts: money that came or went": `SELECT sum(balance)::text FROM account HAVING sum(balance) <> 100000`,
	early: `SELECT k || ' by ' || (due - at) FROM effect JOIN business USING (k)
		WHERE at < due`,
	"ordered tasks that overtook another": `SELECT k || ': ' || seq || ' after ' || before FROM (
		SELECT k, seq, lag(seq) OVER (PARTITION BY ordering_key ORDER BY effect_id) AS before FROM effect
		 WHERE kind = 'ORDERED' AND k NOT IN (SELECT l.k FROM ledger l WHERE outcome = 'unknown')) o WHERE seq < before`,
	"keyed changes that no run has seen": `SELECT id || ': version ' || version || ', seen ' || seen FROM entity
		WHERE seen <> version`,
	"leases that another process ended": `SELECT task_id || ' of ' || coalesce(holder, 'nobody') || ' by ' || by
		FROM stolen`,
	"effects of poison": `SELECT k FROM effect WHERE kind = 'POISON'`,
	"dead letters that should not be": `SELECT plain_payload(payload) ->> 'k' || ': ' || last_error FROM outbox.dead_task
		WHERE task_type <> 'POISON' AND (task_type <> 'EXPIRING' OR reason <> 'expired')`,
	"tasks both dead and done": `SELECT k FROM effect JOIN outbox.dead_task d ON plain_payload(d.payload) ->> 'k' = k`,
	"dead letters without a reason": `SELECT plain_payload(payload) ->> 'k' FROM outbox.dead_task
		WHERE reason = 'attempts' AND attempt <> max_attempts OR last_error IS NULL`,
	"leaks: runs in the journal":          `SELECT to_jsonb(r)::text FROM outbox.running r`,
	"leaks: ordering keys without a head": `SELECT ordering_key FROM outbox.headless_key`,
	"leaks: group keys without a place":   `SELECT group_key FROM outbox.place_request`,
	"leaks: requests to cancel":           `SELECT task_id::text FROM outbox.cancel`,
	"leaks: sessions of the app after the last one": `SELECT application_name || ' ' || coalesce(state, '') || ' '
		|| left(query, 80) FROM pg_stat_activity WHERE usename = 'app'`,
}

// idleChecks are for relays that have nothing to do any more.
var idleChecks = checks{
	"leaks: transactions of idle relays": `SELECT application_name || ' ' || state || ' for ' || (now() - state_change)
		|| ': ' || left(query, 80) FROM pg_stat_activity
		WHERE usename = 'app' AND state LIKE 'idle in transaction%' AND now() - state_change > interval '3 s'`,
	"leaks: connections of idle relays": `SELECT application_name || ': ' || count(*) FROM pg_stat_activity
		WHERE usename = 'app' GROUP BY application_name HAVING count(*) > 24`,
}

const attempts = `SELECT k || ': attempt ' || attempt || ', of which ' || fail || ' were to fail' FROM effect `

// A Tx or Batch handler may see an
// attempt more than was counted, while it is not decided whether an earlier run was one.
// Failures of a handler's own do not count: a keyed task reads with a pool of its own, and a
// connection that is lost in the function given to task.Complete may be the doing of its SQL. A
// handler's own statement may wait too long for a lock of one whose commit has to wait.
var ofBlameless = checks{
	"attempts that faults of the infrastructure cost": attempts + `WHERE attempt > 2 + fail AND kind <> 'KEYED'
		UNION ALL SELECT f.k || ' ' || f.kind || ', attempt ' || f.attempt || ': ' || f.error FROM failure f
		WHERE f.attempt > f.fail AND f.kind NOT IN ('KEYED', 'EVENT', 'POISON')
		AND f.error !~ '^(pq|ERROR): canceling statement due to'
		AND NOT (f.kind = 'LEASED' AND f.error ~ 'bad connection|EOF|closed|reset|terminat|shutdown')`,
}

// No fault ends a process, a connection or a run. A claim of a leased task has counted its attempt.
var ofRepeated = checks{
	"attempts that nothing can have cost": attempts + `WHERE attempt > 1 + fail AND kind = 'LEASED'`,
}

// No result is lost either.
var ofQuiet = checks{
	"calls that nothing can have repeated": `SELECT k || ': ' || calls || ' times' FROM call JOIN ledger USING (k)
		WHERE calls > 1 AND kind = 'PLAIN'`,
}

var ofCalm = checks{
	"calls that nothing can have repeated": `SELECT k || ': ' || calls || ' times' FROM call WHERE calls > 1`,
}
