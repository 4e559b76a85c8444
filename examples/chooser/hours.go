package main

import (
	"time"

	"github.com/txoutbox/outbox/relay"
)

// hours caps a type at a share of the relay's workers. The share depends on the hour. Within the
// caps the built-in order decides.
type hours struct {
	now    func() time.Time // the local time of the windows
	shares map[string]share
	rest   relay.Chooser
}

// share is how many of a hundred workers a type may have.
type share struct {
	from, to       int // hours: 22 to 6 is a night
	within, beside int // percent, in that window and outside
}

func newHours(now func() time.Time, shares map[string]share) *hours {
	return &hours{now: now, shares: shares, rest: relay.Fair()}
}

// at is the percentage at the given hour.
func (s share) at(hour int) int {
	in := s.from <= hour && hour < s.to
	if s.from > s.to {
		in = hour >= s.from || hour < s.to
	}
	if in {
		return s.within
	}
	return s.beside
}

// Choose implements relay.Chooser. Types without a share have no limit here.
func (h *hours) Choose(v relay.View) []int {
	hour := h.now().Hour()
	limited := v
	limited.Heads = nil
	at := []int{} // of limited.Heads, in v.Heads
	for i, head := range v.Heads {
		if s, has := h.shares[head.Type]; has {
			head.Room = min(head.Room, (v.Workers*s.at(hour)+99)/100-head.Running)
		}
		if head.Room > 0 {
			limited.Heads, at = append(limited.Heads, head), append(at, i)
		}
	}
	out := make([]int, len(v.Heads))
	for i, n := range h.rest.Choose(limited) {
		out[at[i]] = min(n, limited.Heads[i].Room)
	}
	return out
}
