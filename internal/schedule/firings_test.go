package schedule

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

type nextFunc func(time.Time) time.Time

func (f nextFunc) Next(t time.Time) time.Time { return f(t) }

func hourly(t time.Time) time.Time { return t.Truncate(time.Hour).Add(time.Hour) }

func at(hour, minute int) time.Time { return time.Date(2026, 3, 1, hour, minute, 0, 0, time.UTC) }

func TestFirings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		catchUp outbox.CatchUp
		paused  bool
		now     time.Time
		at      []time.Time
		next    time.Time
	}{
		{name: "in time", now: at(9, 0), at: []time.Time{at(9, 0)}, next: at(10, 0)},
		{name: "in time, catching up", catchUp: outbox.CatchUpAll, now: at(9, 0), at: []time.Time{at(9, 0)}, next: at(10, 0)},
		{name: "two were missed", now: at(11, 30), at: []time.Time{at(9, 0)}, next: at(12, 0)},
		{name: "two were missed, catching up", catchUp: outbox.CatchUpAll, now: at(11, 30),
			at: []time.Time{at(9, 0), at(10, 0), at(11, 0)}, next: at(12, 0)},
		{name: "the next one is due now", now: at(10, 0), at: []time.Time{at(9, 0)}, next: at(11, 0)},
		{name: "paused", paused: true, now: at(11, 30), next: at(12, 0)},
		{name: "paused, catching up", catchUp: outbox.CatchUpAll, paused: true, now: at(11, 30), next: at(12, 0)},
	} {
		s := Schedule{Timing: nextFunc(hourly), CatchUp: c.catchUp}
		f, err := s.firings(at(9, 0), c.now, c.paused)
		if err != nil || f.why != nil || !slices.Equal(f.at, c.at) || !f.next.Equal(c.next) {
			t.Errorf("%s: fires at %v, next at %v, %v, %v; want %v, %v", c.name, f.at, f.next, f.why, err, c.at, c.next)
		}
	}
	// A firing that is a little late does not move those after it.
	for _, catchUp := range []outbox.CatchUp{outbox.CatchUpOnce, outbox.CatchUpAll} {
		s := Schedule{Timing: nextFunc(func(t time.Time) time.Time { return t.Add(time.Hour) }), CatchUp: catchUp}
		if f, err := s.firings(at(9, 0), at(9, 30), false); err != nil || !f.next.Equal(at(10, 0)) {
			t.Errorf("an hour after the last firing, half an hour late: next at %v, %v, want 10:00", f.next, err)
		}
	}
}

// One transaction makes up for a bounded number of firings, and of bytes.
func TestFiringsOfATransactionAreBounded(t *testing.T) {
	t.Parallel()
	for payload, want := range map[int]int{2: maxFirings, 1 << 20: maxBytes / (1<<20 + 1), 64 << 20: 1} {
		s := Schedule{Timing: nextFunc(hourly), CatchUp: outbox.CatchUpAll, payload: strings.Repeat("1", payload)}
		f, err := s.firings(at(9, 0), at(9, 0).AddDate(1, 0, 0), false)
		if err != nil || len(f.at) != want || !f.next.Equal(hourly(f.at[len(f.at)-1])) {
			t.Errorf("with %d bytes: %d firings, next at %v, %v; want %d", payload, len(f.at), f.next, err, want)
		}
	}
}

func TestANextThatMisbehavesEndsTheSchedule(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]nextFunc{
		"zero":             func(time.Time) time.Time { return time.Time{} },
		"the same":         func(t time.Time) time.Time { return t },
		"a nanosecond on":  func(t time.Time) time.Time { return t.Add(time.Nanosecond) },
		"before":           func(t time.Time) time.Time { return t.Add(-time.Hour) },
		"in 9000 years":    func(t time.Time) time.Time { return t.AddDate(9000, 0, 0) },
		"beyond all years": func(time.Time) time.Time { return time.Unix(1<<62, 0) },
	} {
		for _, catchUp := range []outbox.CatchUp{outbox.CatchUpOnce, outbox.CatchUpAll} {
			s := Schedule{Timing: next, CatchUp: catchUp}
			f, err := s.firings(at(9, 0), at(9, 30), false)
			if err != nil || f.why == nil || !f.next.IsZero() || !slices.Equal(f.at, []time.Time{at(9, 0)}) {
				t.Errorf("%s: fires at %v, next at %v, %v, %v; want one firing and the end", name, f.at, f.next, f.why, err)
			}
		}
	}
	s := Schedule{Timing: nextFunc(func(time.Time) time.Time { panic("boom") })}
	if _, err := s.firings(at(9, 0), at(9, 0), false); !errors.Is(err, errNextPanicked) {
		t.Errorf("a panic: %v, want %v", err, errNextPanicked)
	}
}

// Relays tell schedules apart by all but their timing's code.
func TestTheDefinitionIsOfSpecCatchUpTypeAndPayload(t *testing.T) {
	t.Parallel()
	plain := Schedule{Name: "a", Spec: "1", Timing: nextFunc(hourly), Task: outbox.TaskSpec{Type: "A", Payload: 11}}
	seen := map[string]string{}
	for name, change := range map[string]func(*Schedule){
		"plain":    func(*Schedule) {},
		"spec":     func(s *Schedule) { s.Spec = "2" },
		"catch up": func(s *Schedule) { s.CatchUp = outbox.CatchUpAll },
		"type":     func(s *Schedule) { s.Task.Type = "B" },
		"payload":  func(s *Schedule) { s.Task.Payload = 2 },
		"shifted":  func(s *Schedule) { s.Task.Type, s.Task.Payload = "A1", 1 },
	} {
		s := plain
		change(&s)
		s.Prepare()
		if other, ok := seen[s.definition]; ok {
			t.Errorf("%q and %q have the same definition", name, other)
		}
		seen[s.definition] = name
	}
	same := plain
	same.Timing = nextFunc(func(t time.Time) time.Time { return t.Add(time.Minute) })
	if wrong := same.Prepare(); wrong != nil || seen[same.definition] != "plain" {
		t.Errorf("another timing of the same spec: %v, definition %q", wrong, same.definition)
	}
}
