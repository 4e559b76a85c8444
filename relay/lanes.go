package relay

import (
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

// lane is what the dispatcher knows of one task type.
type lane struct {
	h       *handlers.Handler
	head    *head     // as of the last look
	urgent  int       // the least priority that its next task may have
	credit  int       // claims that may find work: one for a head, two more for each full claim
	running int       // slots that work for it
	served  time.Time // of its last claim

	refusedUntil time.Time // PostgreSQL refused its claim, for a reason that may lie in its rows
	refusalAt    time.Time // when that was logged
}

// lanes chooses between the types. It is not for concurrent use.
type lanes struct {
	all     []*lane
	workers int
	choices int
}

// fairness is how often the lane that has waited longest is served before the most urgent one.
const fairness = 10

// room is how many slots the lane may take: all but one, while there are other types, so that one type cannot
// stop another.
func (l *lanes) room(c *lane) int {
	most := l.workers
	if len(l.all) > 1 && most > 1 {
		most--
	}
	return most - c.running
}

// choose is the lane to claim from next, or nil.
func (l *lanes) choose() *lane {
	var best []*lane
	var oldest *lane
	for _, c := range l.all {
		if c.credit == 0 || c.head == nil || l.room(c) <= 0 {
			continue
		}
		switch {
		case len(best) == 0 || c.urgency() < best[0].urgency():
			best = append(best[:0], c)
		case c.urgency() == best[0].urgency():
			best = append(best, c)
		}
		if oldest == nil || c.waitingSince().Before(oldest.waitingSince()) {
			oldest = c
		}
	}
	if len(best) == 0 {
		return nil
	}
	l.choices++
	if l.choices%fairness == 0 {
		return oldest
	}
	return best[rand.IntN(len(best))]
}

// capped reports whether a lane has work that it may not take for want of room.
func (l *lanes) capped() bool {
	for _, c := range l.all {
		if c.head != nil && c.credit > 0 && l.room(c) <= 0 {
			return true
		}
	}
	return false
}

// choosable reports whether there is a lane to choose.
func (l *lanes) choosable() bool { return l.others(nil) }

// others reports whether another lane has work too.
func (l *lanes) others(c *lane) bool {
	for _, o := range l.all {
		if o != c && o.credit > 0 && o.head != nil && l.room(o) > 0 {
			return true
		}
	}
	return false
}

func (c *lane) urgency() int { return c.urgent + c.h.Priority }

func (c *lane) waitingSince() time.Time {
	if c.head.since.After(c.served) {
		return c.head.since
	}
	return c.served
}

// saw updates the lane from a look.
func (c *lane) saw(h *head) {
	c.head = h
	if h == nil {
		c.credit = 0
	} else {
		c.credit, c.urgent = max(c.credit, 1), h.priority
	}
}

// took updates the lane from a claim of up to limit tasks.
func (l *lanes) took(c *lane, rows []*row, limit int) {
	if len(rows) < limit {
		c.credit = 0
		return
	}
	c.credit = min(c.credit+2, l.workers)
	for _, r := range rows {
		c.urgent = max(c.urgent, r.priority) // what was more urgent is gone
	}
}

// from is where a claim in random order starts.
func (h *head) from() *pivot {
	span := h.lastID - h.taskID
	if span <= 0 {
		return nil
	}
	return &pivot{h.priority, h.attempt, h.taskID + rand.Int64N(span+1)}
}
