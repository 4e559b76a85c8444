package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/pg"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// upkeepJob is what a relay does now and then on the connection of its heartbeat.
type upkeepJob struct {
	name string
	// run does a part of the job that is bounded by its context, and says when the next one is due.
	run  func(ctx context.Context) (wait time.Duration, err error)
	next time.Time
	// refused: PostgreSQL has refused the latest part, and the log knows.
	refused bool
}

// upkeepTimeout bounds each part of a job, so that no beat is late.
const upkeepTimeout = 1500 * time.Millisecond

// upkeepRest is how long a job rests that PostgreSQL refused: the others go on.
const upkeepRest = 10 * time.Second

// work does the jobs that are due until it is time for the next beat; what has been due for longest
// comes first. The error is that of a lost connection.
func (h *heartbeat) work(ctx context.Context, nextBeat time.Time) error {
	for time.Now().Before(nextBeat) && ctx.Err() == nil {
		j := h.nextUpkeepJob()
		if j.next.After(time.Now()) {
			return nil
		}
		if err := h.do(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// nextUpkeepJob is the one that has been due for longest, or will be due first.
func (h *heartbeat) nextUpkeepJob() *upkeepJob {
	j := h.upkeepJobs[0]
	for _, other := range h.upkeepJobs {
		if other.next.Before(j.next) {
			j = other
		}
	}
	return j
}

func (h *heartbeat) do(ctx context.Context, j *upkeepJob) error {
	bounded, cancel := context.WithTimeout(ctx, upkeepTimeout)
	defer cancel()
	wait, err := j.run(bounded)
	if err == nil {
		j.next, j.refused = time.Now().Add(wait), false
		return nil
	}
	j.next = time.Now().Add(takeoverInterval)
	if pgerr.Code(err) == "" || pgerr.Lost(err) {
		return err
	}
	if pgerr.Passing(err) {
		h.r.log.Debug("outbox: upkeep", "job", j.name, "error", pgerr.LogText(err))
		return nil
	}
	j.next = time.Now().Add(upkeepRest)
	if !j.refused {
		h.r.log.Warn("outbox: PostgreSQL refuses a job of the relay's upkeep; it is tried again", "job", j.name, "error", pgerr.LogText(err))
	}
	j.refused = true
	return nil
}

// inTx runs f in a READ COMMITTED transaction on the heartbeat's connection. A relay that freezes
// in it lets its locks go.
func (h *heartbeat) inTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.begin(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = "+pg.Millis(pg.Bookkeeping)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// begin is inTx for an f that limits itself before it locks anything.
func (h *heartbeat) begin(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := f(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}
