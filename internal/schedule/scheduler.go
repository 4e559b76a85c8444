package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Params are what a Scheduler needs of its relay.
type Params struct {
	Schedules []Schedule // prepared
	Parse     Parse      // of stored ones; nil: this relay leaves them alone
	Schema    pg.Schema
	Pool      *pg.Pool
	Pace      pg.Pace // of Run
	Log       *slog.Logger
	// Refused hears that PostgreSQL refuses a part of the work; nil: no more. It reports whether it
	// found and logged the reason.
	Refused func(ctx context.Context, part string, err error) (named bool)
}

// Scheduler adds the schedules of a relay to the table and fires what is due. It is for one
// goroutine.
type Scheduler struct {
	Params
	own        []Schedule           // those of the relay's code; Schedules has the stored ones as well
	started    map[string]string    // definitions of stored ones whose first firing is set
	stored     map[string]*stored   // as they were read last
	loadedAt   time.Time            // when the stored ones were read
	unread     bool                 // some of them have changed since, or were left for the next time
	registered map[string]bool      // as far as is known
	known      map[string]bool      // names that this run has registered before
	changed    map[string]bool      // names that another process has changed, as was logged
	rests      map[string]time.Time // until when a name is left alone, by this process's clock
	refused    map[string]error     // why PostgreSQL refuses a part of the work
}

// restFor is how long a schedule is left alone that cannot be registered or fired.
const restFor = time.Minute

// refusedRest is how long it is if PostgreSQL refuses it for a reason that is named.
const refusedRest = 10 * time.Second

// New returns the scheduler of one run of a relay.
func New(p Params) *Scheduler {
	return &Scheduler{Params: p, own: p.Schedules, started: map[string]string{},
		registered: map[string]bool{}, known: map[string]bool{}, changed: map[string]bool{},
		rests: map[string]time.Time{}, refused: map[string]error{}}
}

// resting reports whether a schedule is left alone.
func (s *Scheduler) resting(name string) bool { return time.Now().Before(s.rests[name]) }

// of is the schedule of that name.
func (s *Scheduler) of(name string) *Schedule {
	return &s.Schedules[slices.IndexFunc(s.Schedules, func(one Schedule) bool { return one.Name == name })]
}

// keys are the names and definitions of the schedules that do not rest, without those to skip.
func (s *Scheduler) keys(skip map[string]bool) (names, definitions []string) {
	for _, one := range s.Schedules {
		if !skip[one.Name] && !s.resting(one.Name) {
			names, definitions = append(names, one.Name), append(definitions, one.definition)
		}
	}
	return names, definitions
}

// isRefused tells that PostgreSQL refuses a part of the work; nil: no more. It reports whether the
// log has the reason.
func (s *Scheduler) isRefused(ctx context.Context, part string, err error) (named bool) {
	if err != nil {
		s.refused[part] = err
	} else if _, was := s.refused[part]; !was {
		return false
	} else {
		delete(s.refused, part)
	}
	return s.Refused(ctx, part, err)
}

// refusedStill looks again at what PostgreSQL refuses of single schedules, as another relay may
// fire them from now on.
func (s *Scheduler) refusedStill(ctx context.Context) {
	for part, err := range s.refused {
		if part != allParts && !s.Refused(ctx, part, err) {
			s.isRefused(ctx, part, nil)
		}
	}
}

// allParts is the part of the work that is all of it.
const allParts = "schedules"

func partOf(name string) string { return fmt.Sprintf("schedule %q", name) }

// rest leaves a schedule alone for a while, as it cannot be fired or registered.
func (s *Scheduler) rest(ctx context.Context, name string, err error) {
	s.rests[name] = time.Now().Add(restFor)
	if pgerr.Refusal(err) && s.isRefused(ctx, partOf(name), err) {
		s.rests[name] = time.Now().Add(refusedRest)
		return
	}
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
	if err := s.load(ctx); err != nil {
		return 0, err
	}
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
// Next, its task and the hooks of that, or the row of it. A transaction that is not as it should be (class 25)
// is not its fault.
func ofSchedule(err error) bool {
	for _, own := range []error{errNextPanicked, outbox.ErrInvalidOption, outbox.ErrInvalidType, outbox.ErrInvalidPayload,
		outbox.ErrPayloadTooLarge} {
		if errors.Is(err, own) {
			return true
		}
	}
	var hook *codec.HookError
	if errors.As(err, &hook) {
		return true
	}
	return pgerr.Refusal(err) && !strings.HasPrefix(pgerr.Code(err), "25")
}
