// Package schedule fires recurring tasks: it computes when a schedule fires next, and enqueues a
// task then.
//
//	Schedule   one of Config.Schedules, checked
//	Scheduler  registers the schedules of one relay and fires what is due
//
// A schedule is a row of outbox.schedule. Its next_at moves on only in the transaction that
// enqueues the firing's task and holds the row's lock, so each firing enqueues one task, however
// many relays have the schedule:
//
//	register ──> next_at set ──due: enqueue──> next_at moved on ──> …
//	                 │   `──paused, due──────> next_at moved on      no task
//	                 `──Next gives no time───> next_at NULL          ended
//
// All times are PostgreSQL's. The definition, a hash of the spec, the task and the catch-up, tells
// relays whose code knows another form of a schedule apart: they leave it alone.
//
// Package relay is its only caller.
package schedule

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/guard"
)

// Timing is a relay.Timing.
type Timing interface{ Next(t time.Time) time.Time }

// Schedule is a relay.Schedule. It is ready for a Scheduler once Prepare has found nothing wrong.
type Schedule struct {
	Name    string
	Timing  Timing
	Spec    string // relay.Timing's String; its change is a change of the timing
	Task    outbox.TaskSpec
	CatchUp outbox.CatchUp

	payload            string
	timing, definition string // hashes, as in the table
	stored             bool   // by an operator: its row says all of it
}

// Prepare returns all that is wrong with the fields.
func (s *Schedule) Prepare() (wrong []error) {
	check := func(field string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", field, err))
		}
	}
	s.Task.Options = slices.Clone(s.Task.Options)
	check("Name", CheckName(s.Name))
	check("Timing", s.checkSpec())
	plain := s.Task // the definition is of the payload; codecs and hooks are of each firing
	plain.Options = append(slices.Clip(s.Task.Options), codec.Plain.(outbox.Option))
	payload, err := plain.Encode()
	check("Task", err)
	check("Timing", s.probe())
	if s.CatchUp = cmp.Or(s.CatchUp, outbox.CatchUpOnce); s.CatchUp != outbox.CatchUpOnce && s.CatchUp != outbox.CatchUpAll {
		check("CatchUp", fmt.Errorf("%.32q: it must be outbox.CatchUpOnce or outbox.CatchUpAll", s.CatchUp))
	}
	s.payload = string(payload)
	s.timing = hash(s.Spec)
	s.definition = hash(s.Spec, string(s.CatchUp), s.Task.Type, s.payload)
	return wrong
}

func (s *Schedule) checkSpec() error {
	if s.Spec == "" {
		return errors.New("its String is empty")
	}
	if err := checkText(s.Spec); err != nil {
		return fmt.Errorf("its String: %w", err)
	}
	return nil
}

// probe calls Next once: a nil pointer panics at the start of the app, not at the first firing.
func (s *Schedule) probe() error {
	return within(func() { s.Timing.Next(time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)) })
}

// CheckName returns what is wrong with the name of a schedule.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > 128:
		return fmt.Errorf("%d bytes, at most 128", len(name))
	}
	return checkText(name)
}

func checkText(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("it is not UTF-8")
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%q does not print", c)
		}
	}
	return nil
}

// Definitions are those of prepared schedules by name, as JSON.
func Definitions(of []Schedule) string {
	all := make(map[string]string, len(of))
	for _, s := range of {
		all[s.Name] = s.definition
	}
	text, _ := json.Marshal(all) // of strings, so there is no error
	return string(text)
}

// hash tells lists of texts apart: each has its length before it.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(p))
		_, _ = io.WriteString(h, p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Missed firings that one transaction makes up for, and the bytes of their payloads.
const (
	maxFirings = 1000
	maxBytes   = 16 << 20
)

// nextTimeout is how long Next may take for the firings of one transaction.
const nextTimeout = 5 * time.Second

var (
	errNoNext       = errors.New("its Next gave no further time")
	errNoAdvance    = errors.New("its Next gave a time that is not after the one before")
	errNextPanicked = errors.New("its Next panicked")
)

// firings are what a due schedule enqueues, and when it is due next; the zero time if it has ended,
// and why.
type firings struct {
	at   []time.Time
	next time.Time
	why  error
}

// firings computes what a schedule that was due at the given time enqueues now. All times are
// PostgreSQL's; none is a client's. A paused one passes its firings over. The error is
// errNextPanicked, after which nothing is to be done.
func (s *Schedule) firings(due, now time.Time, paused bool) (firings, error) {
	most := min(maxFirings, max(1, maxBytes/(len(s.payload)+1)))
	f, err := ask(func() (f firings) {
		if paused || s.CatchUp != outbox.CatchUpAll {
			if f.next, f.why = s.after(due); f.why == nil && !f.next.After(now) {
				f.next, f.why = s.after(now) // firings in between were missed
			}
			return f
		}
		f.next = due
		for len(f.at) < most && f.why == nil && !f.next.After(now) {
			f.at = append(f.at, f.next)
			f.next, f.why = s.after(f.next)
		}
		return f
	})
	if err == nil && !paused && len(f.at) == 0 {
		f.at = []time.Time{due}
	}
	return f, err
}

// first computes the first firing after t, to register the schedule. The error is errNextPanicked.
func (s *Schedule) first(t time.Time) (firings, error) {
	return ask(func() (f firings) {
		f.next, f.why = s.after(t)
		return f
	})
}

// ask calls f, which calls Next. A Next that does not return ends the schedule.
func ask(f func() firings) (firings, error) {
	answer := make(chan firings, 1)
	switch err := within(func() { answer <- f() }); {
	case errors.Is(err, errNextPanicked):
		return firings{}, err
	case err != nil:
		return firings{why: err}, nil
	}
	return <-answer, nil
}

// after is the first firing after t. It is zero with an error if there is none.
func (s *Schedule) after(t time.Time) (time.Time, error) {
	next := s.Timing.Next(t)
	if next.IsZero() {
		return time.Time{}, errNoNext
	}
	next = next.UTC().Truncate(time.Microsecond)
	switch {
	case !next.After(t):
		return time.Time{}, fmt.Errorf("%w (to the microsecond)", errNoAdvance)
	case next.Year() > 9999:
		return time.Time{}, errNoNext
	}
	return next, nil
}

// within calls f, which calls Next, and returns also when that does not: its goroutine is left
// behind then.
func within(f func()) error {
	done := make(chan error, 1)
	go guard.Do(f, func(broke error) {
		if broke != nil {
			broke = fmt.Errorf("%w: %w", errNextPanicked, broke)
		}
		done <- broke
	})
	select {
	case err := <-done:
		return err
	case <-time.After(nextTimeout):
		return fmt.Errorf("its Next did not return within %v", nextTimeout)
	}
}
