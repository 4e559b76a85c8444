package plan

import (
	"math/rand/v2"
	"time"
)

// dispatchTurn is how often the lane that has waited longest is served before the most urgent lane: no
// priority starves another.
const dispatchTurn = 10

// fair chooses the most urgent lane, equal lanes at random, and each tenth time the lane that has waited
// longest.
type fair struct {
	choices int
	best    []*lane
}

// choose returns one of the lanes, of which there is one at least.
func (f *fair) choose(from []*lane) *lane {
	f.best = f.best[:0]
	oldest := from[0]
	for _, c := range from {
		switch {
		case len(f.best) == 0 || c.urgency() < f.best[0].urgency():
			f.best = append(f.best[:0], c)
		case c.urgency() == f.best[0].urgency():
			f.best = append(f.best, c)
		}
		if c.waitingSince().Before(oldest.waitingSince()) {
			oldest = c
		}
	}
	if f.choices++; f.choices%dispatchTurn == 0 {
		return oldest
	}
	return f.best[rand.IntN(len(f.best))]
}

func (c *lane) waitingSince() time.Time {
	if c.head.Since.After(c.servedAt) {
		return c.head.Since
	}
	return c.servedAt
}

// share is how many workers one type may hold: all but one, while there are other types, so that
// one type cannot stop another.
func share(workers, types int) int {
	if types > 1 && workers > 1 {
		return workers - 1
	}
	return workers
}
