package run

import (
	"sync"
	"sync/atomic"
)

// starter is a run that is about to begin.
type starter interface{ begin() }

// starts are runs of leased tasks that are about to begin. A goroutine takes one after the other,
// and before it calls a handler it sees to it that there is another goroutine for the rest: so
// short runs need few goroutines, and none waits for a handler that takes its time.
type starts struct {
	left  atomic.Int64 // len(runs)
	mu    sync.Mutex
	runs  []starter
	spare bool // a goroutine has been started that has not taken a run yet
}

func (s *starts) add(runs []starter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, runs...)
	s.left.Store(int64(len(s.runs)))
	s.ensure()
}

// ensure starts a goroutine if there is something to take and none is about to.
func (s *starts) ensure() {
	if len(s.runs) > 0 && !s.spare {
		s.spare = true
		go s.work()
	}
}

func (s *starts) work() {
	for x := s.next(true); x != nil; x = s.next(false) {
		x.begin()
	}
}

// next takes a run; spare: the caller was the spare goroutine.
func (s *starts) next(spare bool) (x starter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if spare {
		s.spare = false
	}
	if len(s.runs) == 0 {
		s.runs = nil
		return nil
	}
	x, s.runs[0] = s.runs[0], nil
	s.runs = s.runs[1:]
	s.left.Store(int64(len(s.runs)))
	s.ensure()
	return x
}
