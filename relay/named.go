package relay

import (
	"slices"
	"strconv"
	"strings"

	"github.com/txoutbox/outbox/internal/plan"
)

// named is the idle lane of the task that a wake-up names by priority, id and type, and the
// task's class; nil if there is none. Any role can send a wake-up, so its id is not relied on:
// tasks may be before it.
func (l *lanes) named(task string) (*lane, plan.Class) {
	words := strings.SplitN(task, " ", 3)
	if len(words) < 3 {
		return nil, plan.Class{}
	}
	i := slices.IndexFunc(l.all, func(c *lane) bool { return c.h.Type == words[2] && c.head == nil })
	priority, err := strconv.ParseInt(words[0], 10, 16)
	if i < 0 || err != nil {
		return nil, plan.Class{}
	}
	if id, err := strconv.ParseInt(words[1], 10, 64); err != nil || id <= 0 {
		return nil, plan.Class{}
	}
	return l.all[i], plan.Class{Priority: int(priority)}
}
