package run

import (
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
)

// groupSizes are how many tasks the next group of a type claims: as many as ran within the
// handler's GroupWithin, so that a group seldom claims tasks that it has to write back.
type groupSizes struct {
	mu    sync.Mutex
	sizes map[*handler.Handler]int // absent: as many as may be
}

// of is the most that one claim of h's tasks takes.
func (g *groupSizes) of(h *handler.Handler) int {
	if h.GroupSize <= 1 {
		return h.BatchSize
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if size, known := g.sizes[h]; known {
		return size
	}
	return h.GroupSize
}

// note learns from a claim of which so many tasks ran within a time.
func (g *groupSizes) note(h *handler.Handler, ran, claimed int, took time.Duration) {
	size := g.of(h)
	switch {
	case h.GroupSize <= 1:
	case ran < claimed: // writing the others back costs more than the next group wins by one task
		g.set(h, max(3*ran/4, 1))
	case claimed >= size && took < h.GroupWithin*2/3:
		g.set(h, min(size+1+size/4, h.GroupSize))
	}
}

// set is also for a group that failed as a whole: the next ones begin with one task.
func (g *groupSizes) set(h *handler.Handler, size int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sizes == nil {
		g.sizes = map[*handler.Handler]int{}
	}
	g.sizes[h] = size
}
