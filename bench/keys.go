package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

const (
	otherKeys  = 1000 // besides the one that hangs
	placesEach = 3    // of a key
	sideKeys   = "outbox, of 1,000 keys, beside one that hangs"
	sideNoKeys = "outbox, without keys"
)

// The tasks of a key that hangs have numbers below 0.
const fillKeySQL = `/* bench: the backlog of a key */
INSERT INTO outbox.task (task_type, payload, group_key)
SELECT $1, '{"n": -1}', 'hangs' FROM generate_series(1, $2::int)`

func keysSides(plan) []side {
	return []side{oursSide(sideNoKeys, 0, relaySettings{}), oursSide(sideKeys, 0, relaySettings{})}
}

// keysTurn measures from the commit of a task to the start of its handler, in one process at a time,
// and what claims take meanwhile.
func keysTurn(ctx context.Context, b *bench, t turn) error {
	return b.server.with(ctx, t.side, func(d *database, _ client) error {
		keyed := t.name == sideKeys
		if keyed {
			if _, err := d.ExecContext(ctx, fillKeySQL, taskType, b.plan.keyed); err != nil {
				return err
			}
		}
		released, cancel := context.WithCancel(ctx)
		defer cancel()
		hung, started := make(chan struct{}, placesEach), make(chan time.Time, 1)
		reg := handlers.New()
		handlers.Leased(reg, benchTask, func(ctx context.Context, task *outbox.Task[load]) error {
			if task.Payload.N >= 0 {
				started <- time.Now()
				return nil
			}
			select {
			case hung <- struct{}{}:
			default: // it is released already
			}
			<-released.Done()
			return handlers.Snooze(time.Hour)
		}, handlers.MaxRunningPerKey(placesEach))
		took := &claims{}
		db, err := sql.Open("postgres", d.url)
		if err != nil {
			return err
		}
		observers := []relay.Observer{{Claimed: took.add}}
		stop, err := runRelay(ctx, db, reg, relay.Config{ListenDSN: d.url, Observers: observers})
		if err != nil {
			return err
		}
		for n := 0; keyed && n < placesEach && ctx.Err() == nil; n++ {
			select {
			case <-hung:
			case <-ctx.Done():
			}
		}
		err = b.pickups(ctx, t, d, started, keyed, took)
		cancel()
		return errors.Join(err, stop())
	})
}

// pickups enqueues one task after the other.
func (b *bench) pickups(ctx context.Context, t turn, d *database, started chan time.Time, keyed bool,
	took *claims) error {
	const warm = 20
	var ms []float64
	var from time.Time
	one := inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
		var opts []outbox.Option
		if keyed {
			opts = append(opts, outbox.GroupBy(fmt.Sprint("key ", n%otherKeys)))
		}
		_, err := benchTask.Enqueue(ctx, tx, load{N: n}, opts...)
		return err
	})
	for n := range b.plan.pickups + warm {
		if n == warm {
			from = time.Now()
		}
		if err := one(ctx, n); err != nil {
			return err
		}
		committed := time.Now()
		select {
		case at := <-started:
			if n >= warm {
				ms = append(ms, max(0, float64(at.Sub(committed).Microseconds())/1000))
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.add(t, mP50, measure.Quantile(ms, 0.5))
	b.add(t, mP99, measure.Quantile(ms, 0.99))
	b.add(t, mClaimP50, measure.Quantile(took.within(from, time.Now()), 0.5))
	return nil
}
