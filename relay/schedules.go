package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
)

// Schedules are tasks to be enqueued at times of their own; see [Schedule].
type Schedules []Schedule

// Schedule enqueues a task at each time that its Timing gives: a firing. However many relays run
// with it, and whatever their clocks say, each firing enqueues one task, whose RunAt is the time of
// the firing: the times are computed from the row in outbox.schedule and from PostgreSQL's clock,
// and the row is locked meanwhile. There is no leader; any relay that has the schedule in its
// Config fires it, also one without a handler for the task's type.
//
// A relay adds its schedules to the table when it starts. If the timing or Spec of one that is
// there has changed, its next firing is computed anew, from now on; else it is kept, so that
// nothing is lost by a restart. Where processes disagree on a schedule, as in a rolling deploy, the
// last one that started decides, and only relays with the same timing, Spec, CatchUp, task type and
// payload fire it. A schedule that is no longer in any Config stays in the table and does not fire;
// [RemoveSchedule] removes it.
type Schedule struct {
	// Name is the schedule's identity: at most 128 bytes of text that prints, once in a schema.
	Name string

	// Timing says when it fires.
	Timing Timing

	// Spec describes the timing to operators, as the text of a cron expression does. It may be
	// empty. When it changes, the next firing is computed anew; so it need not be set for that, as
	// long as Timing shows the change in the past as well.
	Spec string

	// Task is what a firing enqueues, made by TaskType.New. Its RunAt and Schema are set by the
	// relay.
	Task outbox.NewTask

	// CatchUp says what becomes of firings that were missed while no relay with the schedule
	// worked. Default CatchUpOnce.
	CatchUp CatchUp
}

// Timing says when a schedule fires. The schedules of robfig/cron have it.
type Timing interface {
	// Next is the first firing after t, to the microsecond; the zero time if there is none. It gets
	// PostgreSQL's time, in UTC, and must depend on nothing else: no clock and no state. So an
	// expression of robfig/cron is in UTC unless it names a zone: "CRON_TZ=Europe/Berlin 0 9 * *
	// *". What happens to firings in the hours that a change of daylight-saving time skips or
	// repeats is Next's to say; robfig/cron skips those that do not exist.
	//
	// It is called from several goroutines and must return within 5 s; else the schedule ends,
	// which is logged. It also ends after the zero time, a time after the year 9999, or one that is
	// not after t. It begins again when a relay starts whose Next gives a time. If Next panics or
	// ends its goroutine, the schedule stands as it is, which is logged, and is tried again after a
	// minute.
	Next(t time.Time) time.Time
}

// CatchUp is what becomes of missed firings.
type CatchUp int

const (
	// CatchUpOnce enqueues one task, for the first of the missed firings. Two firings that a relay
	// is too late for are missed as well, so very frequent schedules lose some under load.
	CatchUpOnce CatchUp = iota
	// CatchUpAll enqueues a task for each of them.
	CatchUpAll
)

func (c CatchUp) String() string { return [...]string{"once", "all"}[c] }

// leastEvery is the shortest period of Every.
const leastEvery = 10 * time.Millisecond

type everyTiming time.Duration

// Every fires at the multiples of d since Monday, January 1 of the year 1, 00:00 UTC: Every(15 *
// time.Minute) at each quarter of an hour, Every(24 * time.Hour) at midnight UTC. It does not
// drift, and restarts do not shift it. d is at least 10 ms and of whole microseconds, else New
// refuses it.
func Every(d time.Duration) Timing { return everyTiming(d) }

func (e everyTiming) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

// known is a schedule that was checked, as the loop needs it.
type known struct {
	Schedule
	payload            string
	timing, definition string // hashes, as in the table
}

// check returns the schedules with what New computes of them, or all that is wrong.
func (s Schedules) check() (out []known, err error) {
	names := map[string]bool{}
	var errs []error
	for i, one := range s {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("relay: Config.Schedules[%d] %.32q: "+format, append([]any{i, one.Name}, args...)...))
		}
		if what := badName(one.Name); what != "" {
			bad("Name: %s", what)
		} else if names[one.Name] {
			bad("Name: it is there twice")
		}
		names[one.Name] = true
		if one.CatchUp != CatchUpOnce && one.CatchUp != CatchUpAll {
			bad("CatchUp: %d: must be CatchUpOnce or CatchUpAll", one.CatchUp)
			continue
		}
		if what := badText(one.Spec); what != "" {
			bad("Spec: %s", what)
		}
		k := known{Schedule: one}
		payload, err := one.Task.Encode()
		if err != nil {
			bad("Task: %w", err)
		}
		k.payload = string(payload)
		if e, ok := one.Timing.(everyTiming); ok && (time.Duration(e) < leastEvery || time.Duration(e)%time.Microsecond != 0) {
			bad("Timing: Every(%v): must be at least %v, in whole microseconds", time.Duration(e), leastEvery)
			continue
		}
		if k.timing, err = fingerprint(one); err != nil {
			bad("Timing: %w", err)
		}
		k.definition = hash(k.timing, one.CatchUp.String(), one.Task.Type, k.payload)
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b known) int { return strings.Compare(a.Name, b.Name) })
	return out, errors.Join(errs...)
}

func badName(name string) string {
	switch {
	case name == "":
		return "it is empty"
	case len(name) > 128:
		return fmt.Sprintf("%d bytes, at most 128", len(name))
	}
	return badText(name)
}

func badText(text string) string {
	if !utf8.ValidString(text) {
		return "it is not UTF-8"
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return fmt.Sprintf("%q does not print", c)
		}
	}
	return ""
}

// fingerprint tells timings apart by what they give: firings after moments at odd distances over
// four years.
func fingerprint(s Schedule) (string, error) {
	if s.Timing == nil {
		return "", errors.New("it is nil")
	}
	return within(nextTimeout, func() string {
		at := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
		parts := []string{s.Spec}
		for range 40 {
			t := at
			for range 3 {
				if t = s.Timing.Next(t); t.IsZero() {
					break
				}
				parts = append(parts, t.UTC().Format(time.RFC3339Nano))
			}
			parts = append(parts, "")
			at = at.Add(37*24*time.Hour + 5*time.Hour + 17*time.Minute + 23*time.Second)
		}
		return hash(parts...)
	})
}

// hash is a short hash of texts; what is in one cannot look like two.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// nextTimeout is how long Next may take for what is asked of it at a time.
const nextTimeout = 5 * time.Second

var errNextPanicked = errors.New("Next panicked")

// within calls f, which calls Next, and returns also when that does not: its goroutine is left
// behind then.
func within[T any](limit time.Duration, f func() T) (value T, err error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		guard.Do(func() { a.value = f() }, func(broke error) {
			if broke != nil {
				a.err = fmt.Errorf("%w: %w", errNextPanicked, broke)
			}
			done <- a
		})
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.value, a.err
	case <-timer.C:
		return value, fmt.Errorf("Next did not return within %v", limit)
	}
}
