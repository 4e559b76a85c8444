package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// fleet is the demo's relay processes. It is for one goroutine.
type fleet struct {
	db       *sql.DB
	settings childSettings
	members  []*child
	killed   []int // for each kill: how many tasks were running
}

func startFleet(db *sql.DB, set childSettings, size int) (*fleet, error) {
	f := &fleet{db: db, settings: set}
	for range size {
		c, err := startChild(set)
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		f.members = append(f.members, c)
	}
	return f, nil
}

// killOne kills member i while it runs tasks, and starts another in its place. When it has nothing to run for
// some seconds it is killed all the same.
func (f *fleet) killOne(ctx context.Context, i int) error {
	victim := f.members[i]
	patience := time.Now().Add(5 * time.Second)
	for {
		select {
		case <-victim.exited:
			return fmt.Errorf("relay %d ended by itself: %v", victim.pid(), victim.err)
		default:
		}
		if err := pause(victim.cmd.Process); err != nil {
			return err
		}
		running, err := f.running(ctx, victim.pid())
		if err != nil {
			return errors.Join(err, resume(victim.cmd.Process))
		}
		if running > 0 || time.Now().After(patience) {
			victim.kill()
			f.killed = append(f.killed, running)
			break
		}
		if err := resume(victim.cmd.Process); err != nil {
			return err
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	c, err := startChild(f.settings)
	if err != nil {
		return err
	}
	f.members[i] = c
	return nil
}

// running counts the tasks that the paused process pid has claimed and not finished: runs inside
// transactions are in the journal, leased ones in the task table. What it had sent to the server before it was
// paused may still be on its way, so it counts until two counts agree.
func (f *fleet) running(ctx context.Context, pid int) (int, error) {
	last := -1
	for {
		var n int
		err := f.db.QueryRowContext(ctx, `
			WITH r AS (SELECT relay_id FROM outbox.relay WHERE pid = $1 ORDER BY started_at DESC LIMIT 1)
			SELECT (SELECT count(*) FROM outbox.running JOIN r USING (relay_id))
			     + (SELECT count(*) FROM outbox.task JOIN r USING (relay_id) WHERE state = 'leased')`, pid).Scan(&n)
		if err != nil || n == last {
			return n, err
		}
		last = n
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// stop ends all members in good order.
func (f *fleet) stop() error {
	var errs []error
	for _, c := range f.members {
		c.askToStop()
	}
	for _, c := range f.members {
		errs = append(errs, c.awaitEnd())
	}
	f.members = nil
	return errors.Join(errs...)
}
