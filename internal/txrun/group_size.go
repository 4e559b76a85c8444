package txrun

import (
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
)

// groupSizes are how many tasks the next group of a type claims: as many as probably run within the
// handler's GroupWithin, so that a group seldom locks tasks whose turn does not come. The first
// groups of a relay have one task each, until one has ended.
type groupSizes struct {
	mu   sync.Mutex
	each map[*handler.Handler]time.Duration // a task takes, lately
}

// of is the most that one claim of h's tasks takes.
func (g *groupSizes) of(h *handler.Handler) int {
	if h.GroupSize <= 1 {
		return h.BatchSize
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	each := g.each[h]
	if each == 0 { // not known yet: the first one may be slow
		return 1
	}
	return min(max(int(h.GroupWithin*2/3/each), 1), h.GroupSize)
}

// note learns from a claim of which so many tasks took a time.
func (g *groupSizes) note(h *handler.Handler, tasks int, took time.Duration) {
	if h.GroupSize <= 1 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.each == nil {
		g.each = map[*handler.Handler]time.Duration{}
	}
	each := max(took/time.Duration(tasks), 1)
	if before := g.each[h]; before > 0 {
		each = (7*before + each) / 8
	}
	g.each[h] = each
}

// failed notes that a group failed as a whole: the next ones begin with one task.
func (g *groupSizes) failed(h *handler.Handler) { g.note(h, 1, 8*h.GroupWithin) }
