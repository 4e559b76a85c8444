package decide

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/store"
)

// suspectsTogether is how many tasks that were lost twice run at once in a process.
const suspectsTogether = 8

// Suspects are the tasks that run in this process and whose process died before. Each task that a
// crash took along has lost as many runs as the task that caused it, or fewer. So with one such
// task among them, another task loses at most three runs: two before it is Grouped, and one in its
// group. On its last attempt it is beside no task that was ever lost.
type Suspects struct {
	mu      sync.Mutex
	running [store.LastAttempt + 1]int
	changed time.Time // when one began or ended

	// A more careful one waits until then for those that it may not be beside to end: no less
	// careful one joins them.
	waits      store.Isolation
	waitsUntil time.Time
}

// Enter lets a task run, until leave is called. If it may not run beside those that do, leave is
// nil, and the task may try again after wait.
func (s *Suspects) Enter(c store.Isolation) (leave func(), wait time.Duration) {
	if c == store.NotLost {
		return func() {}, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	joins := c < s.waits && now.Before(s.waitsUntil) && !s.mayRun(s.waits)
	if joins || !s.mayRun(c) {
		wait = 200*time.Millisecond + rand.N(800*time.Millisecond) + min(now.Sub(s.changed), 10*time.Second)
		if c >= store.Alone && c >= s.waits {
			s.waits, s.waitsUntil = c, now.Add(wait+time.Second)
		}
		return nil, wait
	}
	if c >= s.waits {
		s.waits = store.NotLost
	}
	s.running[c]++
	s.changed = now
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running[c]--
		s.changed = time.Now()
	}), 0
}

// mayRun reports whether such a task may run beside those that do.
func (s *Suspects) mayRun(c store.Isolation) bool {
	r := &s.running
	alone := r[store.Alone] + r[store.LastAttempt]
	switch c {
	case store.LostOnce:
		return r[store.LastAttempt] == 0
	case store.Grouped:
		return alone == 0 && r[store.Grouped] < suspectsTogether
	case store.Alone:
		return alone+r[store.Grouped] == 0
	default:
		return alone+r[store.Grouped]+r[store.LostOnce] == 0
	}
}

// Run lets a suspect run, and logs it where it keeps others from running.
func (s *Suspects) Run(log *slog.Logger, t *store.Row) (leave func(), wait time.Duration) {
	leave, wait = s.Enter(t.Isolation)
	if leave != nil && t.Isolation >= store.Grouped {
		log.Warn("outbox: a task whose process died runs isolated", "task_type", t.TaskType,
			"task_id", t.ID, "attempt", t.Begun(), "max_attempts", t.Max, "isolation", t.Isolation.String())
	}
	return leave, wait
}
