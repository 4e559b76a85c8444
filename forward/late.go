package forward

import "sync"

const (
	// lateTimes is how often an event may have no answer while others of its call have one, until that
	// counts as an attempt: the broker may have been lost in the middle of a call.
	lateTimes = 3
	// mostLate bounds what is remembered: other relays publish some of these events.
	mostLate = 10_000
)

// lateEvents are events, by their ids, that had no answer while others had one. Such an
// event is at fault, and not the broker, though it be the only one of a call.
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

// count notes that an event was late, and reports whether that is to count as an attempt.
func (l *lateEvents) count(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times == nil || len(l.times) > mostLate {
		l.times = map[string]int{}
	}
	l.times[id] = (l.times[id] + 1) % lateTimes
	return l.times[id] == 0
}
