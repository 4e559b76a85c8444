package forward

import "sync"

const (
	// lateTimes is the number of calls without an answer for an event, while others had one, that count
	// as one attempt: the broker may have been lost in the middle of a call.
	lateTimes = 3
	// mostLate is the number of events that are remembered: other relays publish some of them.
	mostLate = 10_000
)

// lateEvents are events, by their ids, that had no answer while others had one. Such an event is at
// fault, even if it is the only event of a call.
type lateEvents struct {
	mu    sync.Mutex
	times map[string]int
}

// atFault reports whether each of these was late before.
func (l *lateEvents) atFault(late map[string]error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range late {
		if _, known := l.times[id]; !known {
			return false
		}
	}
	return len(late) > 0
}

// count notes that an event was late, and reports whether this counts as an attempt.
func (l *lateEvents) count(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times == nil || len(l.times) > mostLate {
		l.times = map[string]int{}
	}
	l.times[id] = (l.times[id] + 1) % lateTimes
	return l.times[id] == 0
}
