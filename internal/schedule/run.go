package schedule

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	recheck = 10 * time.Second       // for a change by others: resumed, added, the server's clock
	pause   = 10 * time.Millisecond  // before more is fired
	held    = 100 * time.Millisecond // while another relay holds the row of a due schedule
)

// Run fires until ctx ends. Its timer is set to the next firing.
func (s *Scheduler) Run(ctx context.Context) {
	logged := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.Pace.Answered:
		case <-ctx.Done():
			return
		}
		s.Pace.Try()
		wait, err := s.registerAndFire(ctx)
		switch {
		case err == nil:
			s.Pace.OK()
			s.isRefused(ctx, allParts, nil)
			logged = false
			timer.Reset(wait)
			continue
		case ctx.Err() != nil:
		case pgerr.Refusal(err):
			if !s.isRefused(ctx, allParts, err) && !logged { // once; an outage is the dispatcher's to log
				s.Log.Error("outbox: schedules cannot be fired", "error", pgerr.LogText(err))
			}
			logged = true
		default:
			s.Log.Debug("outbox: schedules", "error", pgerr.LogText(err))
		}
		timer.Reset(s.Pace.Fail())
	}
}

// Once adds the schedules and fires each that is due, once.
func (s *Scheduler) Once(ctx context.Context) error {
	_, err := s.registerAndFire(ctx)
	return err
}

// registerAndFire returns when to try again.
func (s *Scheduler) registerAndFire(ctx context.Context) (wait time.Duration, err error) {
	s.refusedStill(ctx)
	if err := s.register(ctx); err != nil {
		return 0, err
	}
	fired := map[string]bool{}
	for {
		name, err := s.fireOne(ctx, fired)
		if err != nil {
			if name == "" || !ofSchedule(err) {
				return 0, err
			}
			s.rest(ctx, name, err)
		} else if name != "" {
			s.isRefused(ctx, partOf(name), nil)
		}
		if name == "" {
			wait, err := s.nextFiring(ctx)
			switch {
			case wait > 0:
				wait = max(min(wait, recheck), pause)
			case len(fired) > 0: // it goes on
				wait = pause
			default:
				wait = held
			}
			return wait, err
		}
		fired[name] = true
	}
}

// ofSchedule reports whether the schedule is to blame for the error, so that the others go on: its
// Next, or the row of its task. A transaction that is not as it should be (class 25) is not its
// fault.
func ofSchedule(err error) bool {
	return errors.Is(err, errNextPanicked) || pgerr.Refusal(err) && !strings.HasPrefix(pgerr.Code(err), "25")
}
