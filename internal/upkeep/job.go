package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Job is upkeep that each relay does now and then, on the connection of its heartbeat.
type Job struct {
	Name string
	// Run does a part of the job that is bounded by its context, and says when the next one is due.
	Run func(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error)
}

// refusedFunc hears which part of the upkeep PostgreSQL refuses; nil: no more. It may use on. It
// adds the reason to the error, and reports whether it found and logged one.
type refusedFunc func(ctx context.Context, on *pg.Dedicated, part string, err error) (explained error, named bool)

// jobs are those of one relay. At least one is there.
type jobs struct {
	now     func() time.Time
	log     *slog.Logger
	refused refusedFunc
	all     []*dueJob
}

type dueJob struct {
	Job
	at      time.Time
	refused bool // PostgreSQL has refused the latest part, and the log knows
}

func newJobs(now func() time.Time, log *slog.Logger, refused refusedFunc, of []Job) jobs {
	j := jobs{now: now, log: log, refused: refused}
	for _, one := range of {
		j.all = append(j.all, &dueJob{Job: one})
	}
	return j
}

// work does due jobs until the next beat is due, the job that has been due for longest first. The
// error is that of a lost connection.
func (j *jobs) work(ctx context.Context, on *pg.Dedicated, nextBeat time.Time) error {
	for j.now().Before(nextBeat) && ctx.Err() == nil {
		next := j.next()
		if next.at.After(j.now()) {
			return nil
		}
		if err := j.do(ctx, on, next); err != nil {
			return err
		}
	}
	return nil
}

// next is the one that has been due for longest, or will be due first.
func (j *jobs) next() *dueJob {
	next := j.all[0]
	for _, other := range j.all {
		if other.at.Before(next.at) {
			next = other
		}
	}
	return next
}

func (j *jobs) doNamed(ctx context.Context, on *pg.Dedicated, name string) (rest time.Duration, err error) {
	for _, one := range j.all {
		if one.Name == name {
			err = j.do(ctx, on, one)
			return one.at.Sub(j.now()), err
		}
	}
	return 0, fmt.Errorf("relay: there is no job %q", name)
}

func (j *jobs) do(ctx context.Context, on *pg.Dedicated, one *dueJob) error {
	bounded, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	wait, err := one.Run(bounded, on)
	if err == nil {
		if one.refused {
			_, _ = j.refused(ctx, on, one.Name, nil)
		}
		one.at, one.refused = j.now().Add(wait), false
		return nil
	}
	one.at = j.now().Add(TakeoverInterval)
	if pgerr.Code(err) == "" || pgerr.Lost(err) {
		return err
	}
	if pgerr.Passing(err) {
		j.log.Debug("outbox: upkeep", "job", one.Name, "error", pgerr.LogText(err))
		return nil
	}
	one.at = j.now().Add(refusedRest)
	_, named := j.refused(ctx, on, one.Name, err)
	switch {
	case named: // it goes on soon after it is mended
		one.at = j.now().Add(Interval)
	case !one.refused:
		j.log.Warn("outbox: PostgreSQL refuses a job of the relay's upkeep; it is tried again",
			"job", one.Name, "error", pgerr.LogText(err))
	}
	one.refused = true
	return nil
}
