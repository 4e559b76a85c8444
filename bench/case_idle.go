package main

import (
	"context"
	"fmt"
	"time"
)

const (
	caseIdle    = "idle"
	mStatements = "statements/s a relay"
	mIdleCPU    = "CPU, % of a core, a relay"
	mResident   = "resident, MB"
	mPeak       = "resident at most, MB"
	sideIdle1   = "1 sleeping relay"
	sideIdle20  = "20 sleeping relays in a process"
	resetSQL    = `SELECT pg_stat_statements_reset()`
	callsSQL    = `/* bench: calls */
SELECT COALESCE(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1`
	extensionSQL = `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`
)

func idleCase() benchCase {
	return benchCase{
		name: caseIdle, budget: 13, title: "relays that have nothing to do", run: idle,
		says: `Statements that the server ran for the relays (pg_stat_statements, BEGIN and COMMIT included: heartbeats, polls, maintenance), and CPU time of the relay's process (getrusage).
Default settings with ListenDSN. It does not say what the server spends on them.`,
		metrics: []string{mStatements, mIdleCPU, mResident},
	}
}

func idle(ctx context.Context, b *bench) error {
	if _, err := b.server.admin.ExecContext(ctx, extensionSQL); err != nil {
		return fmt.Errorf("this case needs pg_stat_statements: %w", err)
	}
	var processes []*process
	var databases []*database
	sides := []struct {
		name   string
		relays int
	}{{sideIdle1, 1}, {sideIdle20, 20}}
	for _, s := range sides {
		d, err := b.server.fresh(ctx, "empty ours", buildEmpty)
		if err != nil {
			return err
		}
		defer d.drop()
		p, err := startProcess(ctx, childSettings{URLs: []string{d.url}, Relays: s.relays, Set: defaultRelay})
		if err != nil {
			return err
		}
		defer p.stop()
		processes, databases = append(processes, p), append(databases, d)
	}
	pause(ctx, b.plan.settle)
	if _, err := b.server.admin.ExecContext(ctx, resetSQL); err != nil {
		return err
	}
	began := time.Now()
	before := make([]*gone, len(sides))
	for i, p := range processes {
		u, err := p.usage()
		if err != nil {
			return err
		}
		before[i] = u
	}
	pause(ctx, b.plan.idle)
	for i, p := range processes {
		after, err := p.usage()
		if err != nil {
			return err
		}
		seconds := time.Since(began).Seconds()
		var calls float64
		if err := b.server.admin.QueryRowContext(ctx, callsSQL, databases[i].name).Scan(&calls); err != nil {
			return err
		}
		n := float64(sides[i].relays)
		if err := b.sayStatements(ctx, sides[i].name, databases[i].name, seconds*n); err != nil {
			return err
		}
		b.samples.Add(caseIdle, sides[i].name, mStatements, 0, calls/seconds/n)
		b.samples.Add(caseIdle, sides[i].name, mIdleCPU, 0, 100*(after.CPU-before[i].CPU).Seconds()/seconds/n)
		b.samples.Add(caseIdle, sides[i].name, mResident, 0, after.RSS)
	}
	return nil
}

const commonestSQL = `/* bench: the commonest statements */
SELECT left(regexp_replace(query, '\s+', ' ', 'g'), 60), calls FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
 WHERE d.datname = $1 ORDER BY calls DESC LIMIT 8`

// sayStatements prints what the relays send most.
func (b *bench) sayStatements(ctx context.Context, side, database string, relaySeconds float64) error {
	rows, err := b.server.admin.QueryContext(ctx, commonestSQL, database)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var query string
		var calls float64
		if err := rows.Scan(&query, &calls); err != nil {
			return err
		}
		b.say("  %s: %.2f/s %s", side, calls/relaySeconds, query)
	}
	return rows.Err()
}
