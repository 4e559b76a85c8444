package plan

import (
	"cmp"
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

// Class is the tasks of a lane with one priority and attempt: in it the order is that of their ids.
type Class struct{ Priority, Attempt int }

// Class is the class of the position.
func (p Position) Class() Class { return Class{p.Priority, p.Attempt} }

// Compare is by the lane's order.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Priority, q.Priority), cmp.Compare(p.Attempt, q.Attempt),
		cmp.Compare(p.TaskID, q.TaskID))
}

// Start is before all tasks of the class.
func (c Class) Start() Position { return Position{c.Priority, c.Attempt, math.MinInt64} }

// LaneStart is before all tasks.
var LaneStart = Position{math.MinInt16, 0, math.MinInt64}

// Head is the first task of a lane.
type Head struct {
	Position
	LastID int64     // of the lane's tasks with the same priority and attempt; only in random order
	Since  time.Time // when it became due, by this process's clock
}

// pivot is a random place among the tasks of the head's class; nil if the head is the last task.
func (h *Head) pivot() *Position {
	span := h.LastID - h.TaskID
	if span <= 0 {
		return nil
	}
	return &Position{h.Priority, h.Attempt, h.TaskID + rand.Int64N(span+1)}
}

func later(p, q Position) Position {
	if q.Compare(p) > 0 {
		return q
	}
	return p
}

func (p Position) plus(ids int64) Position {
	p.TaskID += ids
	return p
}
