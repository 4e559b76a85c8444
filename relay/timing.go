package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/guard"
)

// Timing says when a schedule fires: [Cron], [Every], [InZone], or a type of the app's own.
type Timing interface {
	// Next is the first firing after t, to the microsecond; the zero time if there is none. It gets
	// PostgreSQL's time, in UTC, and must depend on nothing else: no clock and no state.
	//
	// It is called from several goroutines and must return within 5 s; else the schedule ends,
	// which is logged. It also ends after the zero time, a time after the year 9999, or one that is
	// not after t. It begins again when a relay starts whose Next gives a time. If Next panics or
	// ends its goroutine, the schedule stands as it is, which is logged, and is tried again after a
	// minute.
	Next(t time.Time) time.Time

	// String is the timing as text, which operators see, such as the expression of Cron. When it
	// changes the next firing is computed anew. So a type of the app's own changes it whenever Next
	// changes, for example from "business days" to "business days, 2". It is not empty, and prints.
	String() string
}

// Cron fires by a cron expression that parse understands, such as ParseStandard of
// github.com/robfig/cron/v3:
//
//	relay.Cron(cron.ParseStandard, "0 9 * * *")
//
// parse may be any function whose result has Next as [Timing] has it. An error of parse is an error
// of New. An expression of robfig/cron is in UTC unless it names a zone, as in
// "CRON_TZ=Europe/Berlin 0 9 * * *". With a zone, it does not fire in an hour that a change of
// daylight-saving time skips, and twice in a repeated one; [InZone] fires once in both.
func Cron[T interface{ Next(time.Time) time.Time }](parse func(spec string) (T, error), spec string) Timing {
	c := cronTiming{spec: spec}
	if parse == nil {
		c.err = errors.New("Cron: the parser is nil")
		return c
	}
	timing, err := parse(spec)
	if err != nil {
		c.err = fmt.Errorf("Cron: %.200q: %w", spec, err)
		return c
	}
	c.next = func(t time.Time) time.Time { return timing.Next(t) } // New finds a nil one
	return c
}

type cronTiming struct {
	spec string
	next func(time.Time) time.Time
	err  error // of the parser
}

func (c cronTiming) String() string { return c.spec }
func (c cronTiming) check() error   { return c.err }

func (c cronTiming) Next(t time.Time) time.Time {
	if c.err != nil {
		return time.Time{}
	}
	return c.next(t)
}

// minEvery is the shortest period of Every.
const minEvery = 10 * time.Millisecond

type everyTiming time.Duration

// Every fires at the multiples of d since Monday, January 1 of the year 1, 00:00 UTC: Every(15 *
// time.Minute) at each quarter of an hour, Every(24 * time.Hour) at midnight UTC. It does not
// drift, and restarts do not shift it. d is at least 10 ms and of whole microseconds, else New
// refuses it.
func Every(d time.Duration) Timing { return everyTiming(d) }

func (e everyTiming) String() string { return fmt.Sprint("every ", time.Duration(e)) }

func (e everyTiming) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

func (e everyTiming) check() error {
	if d := time.Duration(e); d < minEvery || d%time.Microsecond != 0 {
		return fmt.Errorf("Every(%v): it must be at least %v, in whole microseconds", d, minEvery)
	}
	return nil
}

// checkTiming returns the text of a timing, or what is wrong with one of this package.
func checkTiming(timing Timing) (text string, err error) {
	if timing == nil {
		return "", errors.New("it is nil")
	}
	if own, ok := timing.(interface{ check() error }); ok {
		if err := own.check(); err != nil {
			return "", err
		}
	}
	if err := guard.Call(func() { text = timing.String() }); err != nil {
		return "", fmt.Errorf("its String panicked: %w", err)
	}
	return text, nil
}
