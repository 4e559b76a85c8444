package upkeep

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Job is done now and then on the connection of the heartbeat.
type Job struct {
	Name string
	// Run does a part of the job that is bounded by its context, and says when the next one is due.
	Run func(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error)
}

type scheduledJob struct {
	Job
	next    time.Time
	refused bool // PostgreSQL has refused the latest part, and the log knows
}

// partTimeout bounds each part of a job, so that no beat is late.
const partTimeout = 1500 * time.Millisecond

// refusedRest is how long a job rests that PostgreSQL refused: the others go on.
const refusedRest = 10 * time.Second

// work does the jobs that are due until it is time for the next beat; what has been due for longest
// comes first. The error is that of a lost connection.
func (h *Heartbeat) work(ctx context.Context, nextBeat time.Time) error {
	for h.Now().Before(nextBeat) && ctx.Err() == nil {
		j := h.nextJob()
		if j.next.After(h.Now()) {
			return nil
		}
		if err := h.do(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

// nextJob is the one that has been due for longest, or will be due first.
func (h *Heartbeat) nextJob() *scheduledJob {
	j := h.jobs[0]
	for _, other := range h.jobs {
		if other.next.Before(j.next) {
			j = other
		}
	}
	return j
}

// Do does a part of the job of that name, due or not, and returns for how long the job rests then.
// The error is that of a lost connection.
func (h *Heartbeat) Do(ctx context.Context, name string) (rest time.Duration, err error) {
	for _, j := range h.jobs {
		if j.Name == name {
			err = h.do(ctx, j)
			rest = j.next.Sub(h.Now())
		}
	}
	return rest, err
}

func (h *Heartbeat) do(ctx context.Context, j *scheduledJob) error {
	bounded, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	wait, err := j.Run(bounded, &h.on)
	if err == nil {
		j.next, j.refused = h.Now().Add(wait), false
		return nil
	}
	j.next = h.Now().Add(TakeoverInterval)
	if pgerr.Code(err) == "" || pgerr.Lost(err) {
		return err
	}
	if pgerr.Passing(err) {
		h.Log.Debug("outbox: upkeep", "job", j.Name, "error", pgerr.LogText(err))
		return nil
	}
	j.next = h.Now().Add(refusedRest)
	if !j.refused {
		h.Log.Warn("outbox: PostgreSQL refuses a job of the relay's upkeep; it is tried again", "job", j.Name, "error", pgerr.LogText(err))
	}
	j.refused = true
	return nil
}

// inTx runs f in a READ COMMITTED transaction on the heartbeat's connection. A relay that freezes
// in it lets its locks go.
func (h *Heartbeat) inTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.begin(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = "+pg.Millis(pg.Bookkeeping)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// begin is inTx for an f that limits itself before it locks anything.
func (h *Heartbeat) begin(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
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
