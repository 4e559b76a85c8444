package plan

import (
	"math"
	"math/rand/v2"
	"time"
)

// Position is a place in the order of a lane, whether a task has it or not. Fewer attempts come
// first, so that tasks that fail do not stand before fresh ones.
type Position struct {
	Priority, Attempt int
	TaskID            int64
}

// LaneStart is before all tasks.
var LaneStart = Position{math.MinInt16, 0, math.MinInt64}

// Head is the first task of a lane.
type Head struct {
	Position
	LastID int64     // of the lane's tasks with the same priority and attempt; only in random order
	Since  time.Time // when it became due, by this process's clock
}

// Claims in random order start at places of their own.
const (
	randomLead   = 4  // most leased tasks that one place starts,
	randomSingly = 30 // in claims of more than this; else it is one
)

// RandomStart is where a claim in random order starts.
func (h *Head) RandomStart() *Position {
	span := h.LastID - h.TaskID
	if span <= 0 {
		return nil
	}
	return &Position{h.Priority, h.Attempt, h.TaskID + rand.Int64N(span+1)}
}

// RandomStarts are where a claim of n leased tasks in random order starts, and how many tasks follow each
// place at most: one, but for large claims.
func (h *Head) RandomStarts(n int) (places []Position, lead int) {
	if lead = 1; n > randomSingly {
		lead = randomLead
	}
	for range (n + lead - 1) / lead {
		if p := h.RandomStart(); p != nil {
			places = append(places, *p)
		}
	}
	return places, lead
}
