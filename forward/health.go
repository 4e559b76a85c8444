package forward

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrUnavailable is in the error of [Forwarder.Health] while a circuit is open.
var ErrUnavailable = errors.New("forward: events are not published")

// mostShown is how many open circuits Health names.
const mostShown = 5

// Health is nil while events are sent to all targets. Else it wraps [ErrUnavailable], and names the
// broker or up to five targets whose circuits are open in this process, since when, and the last
// error of each. It does no I/O and does not block. A circuit without a trial for ten minutes is
// forgotten.
func (f *Forwarder) Health() error {
	all := f.circuits.all()
	if len(all) == 0 {
		return nil
	}
	var texts []string
	for i, c := range all {
		if i == mostShown {
			texts = append(texts, fmt.Sprintf("and %d more targets", len(all)-i))
			break
		}
		texts = append(texts, fmt.Sprintf("%s since %s: %v", shown(c.target), c.since.UTC().Format(time.RFC3339),
			c.err))
	}
	return fmt.Errorf("%w: %s: %s", ErrUnavailable, f.taskType, strings.Join(texts, "; "))
}
