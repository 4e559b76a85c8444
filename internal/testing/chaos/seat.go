//go:build unix

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/proxy"
)

// seat is a process that is started again when it ends, and its proxy before the server.
type seat struct {
	name   string
	proxy  *proxy.Proxy
	config app.Config

	mu      sync.Mutex
	process *process
	closed  bool
	wait    sync.WaitGroup
	starts  int
}

// newSeat starts the process. url is the database's at an address.
func newSeat(address string, url func(address string) string, c app.Config) (*seat, error) {
	p, err := proxy.New(address)
	if err != nil {
		return nil, err
	}
	c.URL = url(p.Address())
	s := &seat{name: c.Name, proxy: p, config: c}
	if err := s.start(); err != nil {
		p.Close()
		return nil, err
	}
	s.wait.Go(s.supervise)
	return s, nil
}

// start starts the process, unless the seat is closed.
func (s *seat) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	c := s.config
	c.Name = fmt.Sprint(c.Name, ".", s.starts)
	p, err := startProcess(c, filepath.Join(c.Dir, s.name+".log"))
	if err == nil {
		s.starts++
		s.process = p
	}
	return err
}

func (s *seat) supervise() {
	for {
		p := s.running()
		<-p.Ended
		s.mu.Lock()
		done := s.closed || s.config.Role == app.RoleProducer && p.Err == nil
		s.mu.Unlock()
		if done {
			return
		}
		for s.start() != nil { // the machine has no room for a process now
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (s *seat) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (s *seat) kill() { s.running().signal(syscall.SIGKILL) }

// drainWithin is how long a relay may take to end after SIGTERM: its DrainTimeout, and 25 s as
// relay.Run says.
const drainWithin = 40 * time.Second

// ends sends SIGTERM and reports whether the process ends in time. Its exit status says little, as
// another fault may end it meanwhile.
func (s *seat) ends() bool { return !errors.Is(s.running().terminate(drainWithin), errStays) }

// stop ends the process in order, for good.
func (s *seat) stop(within time.Duration) error {
	s.mu.Lock()
	s.closed = true
	p := s.process
	s.mu.Unlock()
	err := p.terminate(within)
	s.wait.Wait()
	return err
}

// close leaves nothing behind.
func (s *seat) close() {
	s.mu.Lock()
	s.closed = true
	s.process.signal(syscall.SIGKILL)
	s.mu.Unlock()
	s.wait.Wait()
	s.proxy.Close()
}
