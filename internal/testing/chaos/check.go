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
	queries := maps.Clone(always)
	if fakesClock(o) {
		delete(queries, early)
	}
	if o.worst() <= blameless {
		maps.Copy(queries, ofBlameless)
	}
	if o.worst() <= repeated {
		maps.Copy(queries, ofRepeated)
	}
	if o.worst() <= quiet {
		maps.Copy(queries, ofQuiet)
	}
	if o.worst() <= calm {
		maps.Copy(queries, ofCalm)
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

// noErrors checks that no relay has logged an error.
func noErrors(a *arena) error {
	for _, s := range a.relays {
		text, err := os.ReadFile(filepath.Join(a.dir, s.name+".log"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "level=ERROR") {
				a.violate("errors that relays have logged", strings.TrimSpace(line))
			}
		}
	}
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
