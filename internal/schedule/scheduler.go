package schedule

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	recheck = 10 * time.Second       // for what others changed: resumed, added, the server's clock
	pause   = 10 * time.Millisecond  // before more is fired
	held    = 100 * time.Millisecond // while another relay holds what is due
)

// Params are what a Scheduler needs of its relay.
type Params struct {
	Schedules []Schedule // prepared
	Schema    pg.Schema
	Pool      *pg.Pool
	Pace      pg.Pace // of Run
	Log       *slog.Logger
}

// Scheduler adds the schedules of a relay to the table and fires what is due. It is for one
// goroutine.
type Scheduler struct {
	Params
	registered map[string]bool  // as far as is known
	known      map[string]bool  // names that this run has registered before
	changed    map[string]bool  // names that another process has changed, as was logged
	overdue    map[string]int64 // the firing by name for which it was registered again
	rests      rests
}

// New returns the scheduler of one run of a relay.
func New(p Params) *Scheduler {
	return &Scheduler{Params: p, registered: map[string]bool{}, known: map[string]bool{}, changed: map[string]bool{}, overdue: map[string]int64{}, rests: rests{}}
}

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
			logged = false
			timer.Reset(wait)
			continue
		case ctx.Err() != nil:
		case pgerr.Refusal(err) && !logged:
			logged = true // once; an outage is the dispatcher's to log
			s.Log.Error("outbox: schedules cannot be fired", "error", pgerr.LogText(err))
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
			s.rest(name, err)
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

// keys are the names and definitions of the schedules that do not rest, without those to skip.
func (s *Scheduler) keys(skip map[string]bool) (names, definitions []string) {
	for _, one := range s.Schedules {
		if !skip[one.Name] && !s.rests.resting(one.Name) {
			names, definitions = append(names, one.Name), append(definitions, one.definition)
		}
	}
	return names, definitions
}

// rest leaves a schedule alone for a while, as it cannot be fired or registered.
func (s *Scheduler) rest(name string, err error) {
	s.rests.add(name)
	if errors.Is(err, errNextPanicked) {
		s.Log.Error("outbox: a schedule waits, as its Next panicked; it is tried again", "schedule", name, pgerr.LogAttr(err))
		return
	}
	s.Log.Error("outbox: the task of a schedule cannot be enqueued", "schedule", name, "error", pgerr.LogText(err))
}

// ended logs that a schedule fires no more.
func (s *Scheduler) ended(name string, why error) {
	if errors.Is(why, errNoNext) {
		s.Log.Info("outbox: a schedule has ended", "schedule", name, "reason", why.Error())
		return
	}
	s.Log.Error("outbox: a schedule was stopped, as its Next misbehaves", "schedule", name, pgerr.LogAttr(why))
}
