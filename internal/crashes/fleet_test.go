package crashes_test

import (
	"errors"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/relaytest"
)

// fleet is a number of relay processes that run a program.
type fleet struct {
	DB      *relaytest.Database
	Program string
	Workers int
	Restart bool // each is started again when it ends
	Hasten  bool // relays are declared dead as soon as their process is, instead of when their heartbeat runs out

	t       testing.TB
	mu      sync.Mutex
	alive   []*process
	logs    []*relaytest.Records
	stopped bool
	wait    sync.WaitGroup
}

// Start starts n processes, which are killed at the end of the test.
func (f *fleet) Start(t testing.TB, n int) {
	t.Helper()
	f.t = t
	for range n {
		f.wait.Go(f.supervise)
	}
	t.Cleanup(func() {
		f.mu.Lock()
		f.stopped = true
		for _, p := range f.alive {
			_ = p.Kill()
		}
		f.mu.Unlock()
		f.wait.Wait()
		if t.Failed() {
			for _, log := range f.logs {
				t.Logf("log of a relay:\n%s", log.Tail())
			}
		}
	})
}

func (f *fleet) supervise() {
	for first := true; first || f.Restart; first = false {
		f.mu.Lock()
		if f.stopped {
			f.mu.Unlock()
			return
		}
		p, err := newProcess(f.DB, f.Program, f.Workers)
		if err != nil {
			f.t.Error(err)
			f.mu.Unlock()
			return
		}
		f.alive = append(f.alive, p)
		f.logs = append(f.logs, p.Log)
		f.mu.Unlock()
		<-p.Ended
		f.mu.Lock()
		f.alive = slices.DeleteFunc(f.alive, func(other *process) bool { return other == p })
		f.mu.Unlock()
		if exit := (*exec.ExitError)(nil); errors.As(p.Err, &exit) && exit.ExitCode() == 2 {
			f.t.Errorf("a relay's process panicked:\n%s", p.Log.Tail())
			return
		}
		if f.Hasten {
			if err := declareDead(f.DB, p); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// Processes returns those that live.
func (f *fleet) Processes() []*process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.alive)
}
