package run

import (
	"math/rand/v2"
	"sync"
	"time"
)

// soloTime is for how long after its start no other suspect of the process starts beside one: most
// of what kills a process does so at once, and slow tasks that were only near should not wait for
// each other to end.
const soloTime = 3 * time.Second

// soloRun is a suspect's right to start while no other suspect of its process does.
type soloRun struct {
	end   func()
	timer *time.Timer
}

// soloRun lets a task run whose process died before, if no other such task has just begun in this
// process: whichever of them kills it, the other should not lose an attempt. It returns nil if one
// has.
func (r *Runner) soloRun() *soloRun {
	if !r.suspects.TryLock() {
		return nil
	}
	return &soloRun{end: sync.OnceFunc(r.suspects.Unlock)}
}

// begun says that the suspect's handler is about to be called.
func (s *soloRun) begun() {
	if s != nil {
		s.timer = time.AfterFunc(soloTime, s.end)
	}
}

// over says that the suspect has ended.
func (s *soloRun) over() {
	if s == nil {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.end()
}

// aside is how long a suspect waits for another one.
func aside() time.Duration { return 200*time.Millisecond + rand.N(800*time.Millisecond) }
