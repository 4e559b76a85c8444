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
	sideIdle1   = "1 sleeping relay"
	sideIdle20  = "20 sleeping relays in a process"
	putOffSQL   = `UPDATE outbox.maintenance SET due_at = GREATEST(due_at, clock_timestamp() + interval '1 minute')`
	resetSQL    = `SELECT pg_stat_statements_reset()`
	callsSQL    = `/* bench: calls */
SELECT COALESCE(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1`
	extensionSQL = `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`
)

var idleCase = benchCase{
	name: caseIdle, title: "relays that have nothing to do", run: idle,
}

func idle(ctx context.Context, b *bench) error {
	if _, err := b.server.admin.ExecContext(ctx, extensionSQL); err != nil {
		return fmt.Errorf("this case needs pg_stat_statements: %w", err)
	}
	type sleeping struct {
		side   string
		relays int
		db     *database
		p      *process
		before Usage
	}
	all := []sleeping{{side: sideIdle1, relays: 1}, {side: sideIdle20, relays: 20}}
	for i := range all {
		s := &all[i]
		var err error
		if s.db, err = b.server.fresh(ctx, oursSide(s.side, 0, relaySettings{})); err != nil {
			return err
		}
		defer s.db.drop()
		set := ChildSettings{URLs: []string{s.db.url}, Relays: s.relays, Set: defaultRelay}
		if s.p, err = startProcess(ctx, set); err != nil {
			return err
		}
		defer s.p.stop()
	}
	pause(ctx, b.plan.settle)
	for _, s := range all {
		if err := s.db.exec(ctx, putOffSQL); err != nil {
			return err
		}
	}
	if _, err := b.server.admin.ExecContext(ctx, resetSQL); err != nil {
		return err
	}
	began := time.Now()
	for i := range all {
		var err error
		if all[i].before, err = all[i].p.used(ctx); err != nil {
			return err
		}
	}
	pause(ctx, b.plan.idle)
	for _, s := range all {
		after, err := s.p.used(ctx)
		if err != nil {
			return err
		}
		seconds := time.Since(began).Seconds() * float64(s.relays)
		var calls float64
		if err := b.server.admin.QueryRowContext(ctx, callsSQL, s.db.name).Scan(&calls); err != nil {
			return err
		}
		b.samples.Add(caseIdle, s.side, mStatements, 0, calls/seconds)
		b.samples.Add(caseIdle, s.side, mIdleCPU, 0, 100*(after.CPU-s.before.CPU).Seconds()/seconds)
	}
	return nil
}
