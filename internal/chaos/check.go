//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/invariants"
)

const early = "delayed tasks that ran early"

// A check is a query for what must not be; its one column names each.
var checks = map[string]string{
	"lost tasks: enqueued, and neither done nor dead": `SELECT k FROM ledger l WHERE outcome = 'acked' AND kind <> 'KEYED' AND NOT EXISTS (SELECT FROM effect e WHERE e.k = l.k)
		AND NOT EXISTS (SELECT FROM sink s WHERE s.k = l.k AND l.kind = 'PLAIN') AND NOT EXISTS (SELECT FROM outbox.dead_task d WHERE d.payload ->> 'k' = l.k)
		AND NOT EXISTS (SELECT FROM canceled c WHERE c.k = l.k AND result <> 'not found')`,
	"tasks that ran though they were cancelled while they waited": `SELECT k FROM effect JOIN canceled USING (k) WHERE result = 'canceled'`,
	"tasks that are left":                         `SELECT task_type || ' ' || state || ' ' || (payload ->> 'k') FROM outbox.task`,
	"duplicated effects":                          `SELECT k || ', ' || count(*) || ' times' FROM effect GROUP BY k HAVING count(*) > 1`,
	"ghosts: effects of what was rolled back":     `SELECT k FROM effect JOIN ledger USING (k) WHERE outcome = 'rolled_back'`,
	"calls of the sink for what was rolled back":  `SELECT k FROM sink JOIN ledger USING (k) WHERE outcome = 'rolled_back'`,
	"unexpected effects: of what nobody enqueued": `SELECT k FROM effect e WHERE NOT EXISTS (SELECT FROM ledger l WHERE l.k = e.k)`,
	"business rows of what was rolled back":       `SELECT k FROM business JOIN ledger USING (k) WHERE outcome = 'rolled_back'`,
	"business rows that are lost":                 `SELECT k FROM ledger l WHERE outcome = 'acked' AND NOT EXISTS (SELECT FROM business b WHERE b.k = l.k)`,
	"unknown commits: a business row, and no work": `SELECT k FROM ledger l JOIN business USING (k) WHERE outcome = 'unknown' AND kind NOT IN ('KEYED', 'CANCELABLE') AND NOT EXISTS (SELECT FROM effect e WHERE e.k = l.k)
		AND NOT EXISTS (SELECT FROM sink s WHERE s.k = l.k AND l.kind = 'PLAIN') AND NOT EXISTS (SELECT FROM outbox.dead_task d WHERE d.payload ->> 'k' = l.k)`,
	"unknown commits: work, and no business row": `SELECT k FROM (SELECT k FROM effect UNION ALL SELECT k FROM sink UNION ALL SELECT payload ->> 'k' FROM outbox.dead_task) e
		WHERE NOT EXISTS (SELECT FROM business b WHERE b.k = e.k)`,
	"accounts: money that came or went":             `SELECT sum(balance)::text FROM account HAVING sum(balance) <> 100000`,
	early:                                           `SELECT k || ' by ' || (due - at) FROM effect JOIN business USING (k) WHERE at < due`,
	"ordered tasks that overtook another":           `SELECT k || ': ' || seq || ' after ' || before FROM (SELECT k, seq, lag(seq) OVER (PARTITION BY ordering_key ORDER BY effect_id) AS before FROM effect WHERE kind = 'ORDERED' AND k NOT IN (SELECT l.k FROM ledger l WHERE outcome = 'unknown')) o WHERE seq < before`,
	"keyed changes that no run has seen":            `SELECT id || ': version ' || version || ', seen ' || seen FROM entity WHERE seen <> version`,
	"leases that another process ended":             `SELECT task_id || ' of ' || coalesce(holder, 'nobody') || ' by ' || by FROM stolen`,
	"effects of misbehaving handlers":               `SELECT k FROM effect WHERE kind IN ('MISBEHAVES', 'POISON')`,
	"dead letters that should not be":               `SELECT payload ->> 'k' || ': ' || last_error FROM outbox.dead_task WHERE task_type NOT IN ('MISBEHAVES', 'POISON', 'COMMITS')`,
	"tasks both dead and done":                      `SELECT k FROM effect JOIN outbox.dead_task d ON d.payload ->> 'k' = k WHERE kind <> 'COMMITS'`,
	"dead letters without a reason":                 `SELECT payload ->> 'k' FROM outbox.dead_task WHERE reason = 'attempts' AND attempt <> max_attempts OR last_error IS NULL`,
	"leaks: runs in the journal":                    `SELECT to_jsonb(r)::text FROM outbox.running r`,
	"leaks: ordering keys without a head":           `SELECT ordering_key FROM outbox.headless_key`,
	"leaks: requests to cancel":                     `SELECT task_id::text FROM outbox.cancel`,
	"leaks: sessions of the app after the last one": `SELECT application_name || ' ' || coalesce(state, '') || ' ' || left(query, 80) FROM pg_stat_activity WHERE usename = 'app'`,
}

// burned are attempts that were counted although nothing had failed but the infrastructure. The
// attempt that a Tx or Batch handler sees may be one higher while it is not decided yet whether an
// earlier run was one. Not meant are failures of a handler's own: a keyed task reads with a pool of
// its own, and a connection that is lost while the function given to task.Complete runs may be the
// doing of its SQL.
const burned = `SELECT k || ': attempt ' || attempt || ', of which ' || fail || ' were to fail' FROM effect WHERE attempt > 2 + fail AND kind <> 'KEYED'
	UNION ALL SELECT f.k || ' ' || f.kind || ', attempt ' || f.attempt || ': ' || f.error FROM failure f
	 WHERE f.attempt > f.fail AND f.kind NOT IN ('KEYED', 'MISBEHAVES', 'POISON', 'COMMITS') AND NOT (f.kind = 'LEASED' AND f.error ~ 'bad connection|EOF|closed|reset|terminat|shutdown')`

// idle are attempts that nothing can have cost where nothing was broken. A claim of a leased task
// has counted its attempt.
const idle = `SELECT k || ': attempt ' || attempt || ', of which ' || fail || ' were to fail' FROM effect WHERE attempt > 1 + fail AND kind = 'LEASED'`

// blameless are the faults that cost no attempt: no process and no handler's time is lost.
var blameless = []string{"terminate", "crash", "commit", "cut", "delay", "notify", "connections", "xmin", "failover", "clock", "disk"}

// neighbours are tasks that lost more than one attempt to the poison of others.
const neighbours = `SELECT k || ': attempt ' || attempt || ', of which ' || fail || ' were to fail' FROM effect WHERE attempt > 2 + fail`

// check compares what producers were told with what happened.
func (a *arena) check() error {
	if err := a.loadLedgers(); err != nil {
		return err
	}
	for name, query := range checks {
		if a.has("clock") && name == early {
			continue // the clock may have been set back since
		}
		if err := a.examples(name, query); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(a.Faults, func(f string) bool { return !slices.Contains(blameless, f) }) {
		if err := a.examples("attempts that faults of the infrastructure cost", burned); err != nil {
			return err
		}
	}
	if len(a.Faults) == 0 {
		if err := a.examples("attempts that nothing can have cost", idle); err != nil {
			return err
		}
	}
	if a.onlyPoison() {
		if err := a.examples("neighbours of poison that lost more than an attempt", neighbours); err != nil {
			return err
		}
	}
	for name, query := range invariants.Always {
		n, err := a.number(query)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if n != 0 {
			a.violate(name, fmt.Sprint(n, " times"))
		}
	}
	if a.counts["tasks acked"] == 0 {
		a.violate("nothing was enqueued", "no task was acknowledged")
	}
	for _, fault := range a.Faults {
		if a.counts[fault] == 0 && a.failures[fault] > 0 {
			a.violate("faults that were never done", fault)
		}
	}
	return a.checkStarts()
}

// checkIdle looks at the relays when they have nothing to do any more.
func (a *arena) checkIdle() error {
	for name, query := range map[string]string{
		"leaks: transactions of idle relays": `SELECT application_name || ' ' || state || ' for ' || (now() - state_change) || ': ' || left(query, 80) FROM pg_stat_activity
			WHERE usename = 'app' AND state LIKE 'idle in transaction%' AND now() - state_change > interval '3 s'`,
		"leaks: connections of idle relays": `SELECT application_name || ': ' || count(*) FROM pg_stat_activity WHERE usename = 'app' GROUP BY application_name HAVING count(*) > 24`,
	} {
		if err := a.examples(name, query); err != nil {
			return err
		}
	}
	return nil
}

// onlyPoison: then its starts are known exactly, as nothing else ends a process that was about to
// start it. Several at once may do so to each other.
func (a *arena) onlyPoison() bool {
	return len(a.Faults) == 1 && a.Faults[0] == "poison" && a.Every >= 10*time.Second
}

// examples runs a check. One for leaks is repeated for a while, as sessions end a moment after
// their processes.
func (a *arena) examples(name, query string) error {
	var found []string
	for try := 0; ; try++ {
		found = found[:0]
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		err := a.admin(ctx, func(db *sql.DB) error {
			rows, err := db.QueryContext(ctx, query)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var example sql.NullString
				if err := rows.Scan(&example); err != nil {
					return err
				}
				found = append(found, example.String)
			}
			return rows.Err()
		})
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(found) == 0 || !strings.HasPrefix(name, "leaks: sessions") || try == 50 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	for _, example := range found {
		a.violate(name, example)
	}
	return nil
}

// loadLedgers puts what producers and the sink know into tables.
func (a *arena) loadLedgers() error {
	paths, err := filepath.Glob(filepath.Join(a.dir, "*.ledger"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		all, err := readLedger(path)
		if err != nil {
			return err
		}
		for page := range slices.Chunk(all, 10_000) {
			var ks, kinds, outcomes []string
			for _, t := range page {
				ks, kinds, outcomes = append(ks, t.k), append(kinds, t.kind), append(outcomes, t.outcome)
				a.counts["tasks "+strings.ReplaceAll(t.outcome, "_", " ")]++
			}
			if err := a.do(`INSERT INTO ledger SELECT * FROM unnest($1::text[], $2::text[], $3::text[])`, pq.Array(ks), pq.Array(kinds), pq.Array(outcomes)); err != nil {
				return err
			}
		}
	}
	a.sink.mu.Lock()
	defer a.sink.mu.Unlock()
	var ks []string
	var calls []int
	for k, n := range a.sink.calls {
		ks, calls = append(ks, k), append(calls, n)
		a.counts["calls of the sink"] += n
		a.counts["repeated calls of the sink"] += n - 1
	}
	if err := a.do(`INSERT INTO sink SELECT * FROM unnest($1::text[], $2::int[])`, pq.Array(ks), pq.Array(calls)); err != nil {
		return err
	}
	return a.do(`CREATE INDEX ON ledger (k); CREATE INDEX ON effect (k); CREATE INDEX ON sink (k); CREATE INDEX ON canceled (k);
		ANALYZE ledger, effect, sink, business, canceled`)
}

// lostOnCrash is how much of the journal, which is committed asynchronously, a crash of the server
// may take with it: three times wal_writer_delay, and the death of the process before that.
const lostOnCrash = 1500 * time.Millisecond

// checkStarts checks that poison was started as often as it may, in the whole fleet.
func (a *arena) checkStarts() error {
	text, err := os.ReadFile(filepath.Join(a.dir, "starts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	type poison struct {
		starts []time.Time
		how    string
	}
	all := map[string]*poison{}
	for line := range strings.Lines(string(text)) {
		var k, how string
		var attempt, at int64
		if _, err := fmt.Sscan(line, &k, &attempt, &at, &how); err != nil {
			return fmt.Errorf("the file of starts: %q: %w", line, err)
		}
		if all[k] == nil {
			all[k] = &poison{how: how}
		}
		all[k].starts = append(all[k].starts, time.Unix(0, at))
	}
	for k, p := range all {
		most := poisonStarts
		if p.how == "backend" {
			most += 9 // lost connections, of which the tenth is the end
		}
		for _, at := range p.starts {
			if slices.ContainsFunc(a.crashes, func(c time.Time) bool { return c.After(at) && c.Sub(at) < lostOnCrash }) {
				most++
			}
		}
		a.counts["starts of poison"] += len(p.starts)
		if len(p.starts) > most {
			a.violate("poison that was started too often", fmt.Sprintf("%s (%s): %d times", k, p.how, len(p.starts)))
		}
		if a.onlyPoison() && p.how != "backend" && len(p.starts) != poisonStarts {
			a.violate("poison that was not started exactly as often as it may", fmt.Sprintf("%s (%s): %d times", k, p.how, len(p.starts)))
		}
	}
	return nil
}
