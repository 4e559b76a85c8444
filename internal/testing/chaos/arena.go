//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/proxy"
)

// arena is what faults break.
type arena struct {
	*cluster
	*report
	broker    broker
	dir       string // of ledgers, logs and what faults need
	relays    []*seat
	producers []*seat

	asides    sync.WaitGroup // of faults that take their time
	over      atomic.Bool    // no more faults
	rotating  atomic.Bool    // the app does not have the broker's password
	rewriting atomic.Bool    // tables
	repack    string         // the program; "" if it is not installed
	cleanups  []func()

	healing sync.Mutex
	healers []func() // of faults that last, until they are over
}

func (a *arena) someRelay(r *rand.Rand) *seat { return a.relays[r.IntN(len(a.relays))] }

func (a *arena) seats() []*seat { return slices.Concat(a.relays, a.producers) }

// aside does something that takes its time beside the schedule. It is the fault if it returns what
// it did.
func (a *arena) aside(fault string, do func() (string, error)) {
	a.asides.Go(func() {
		what, err := do()
		a.happened(fault, what, err)
	})
}

// lasts heals after d, or at the end of the run.
func (a *arena) lasts(d time.Duration, heal func()) {
	heal = sync.OnceFunc(heal) // a second call waits until the first is done
	a.healing.Lock()
	a.healers = append(a.healers, heal)
	a.healing.Unlock()
	time.AfterFunc(d, heal)
}

// heal ends every fault.
func (a *arena) heal() {
	a.over.Store(true)
	a.asides.Wait()
	a.healing.Lock()
	defer a.healing.Unlock()
	for _, heal := range a.healers {
		heal()
	}
	for _, s := range a.seats() {
		s.proxy.CutSilent()
	}
}

// cleanup has close call f, before what was given to earlier calls.
func (a *arena) cleanup(f func()) { a.cleanups = append(a.cleanups, f) }

// close leaves nothing behind but the files.
func (a *arena) close() {
	a.over.Store(true)
	a.asides.Wait()
	for _, f := range slices.Backward(a.cleanups) {
		f()
	}
}

// settings are those of the servers. A standby is to be back soon, as commits wait for it, and
// finds the WAL that it missed.
var settings = map[string]string{
	"fsync": "on", "max_connections": "150", "wal_retrieve_retry_interval": "100ms",
	"wal_receiver_status_interval": "1s", "max_wal_size": "256MB", "wal_keep_size": "1GB",
}

// newArena starts all that a run needs. The caller must call close, also after an error.
func newArena(ctx context.Context, o options, dir string) (*arena, error) {
	a := &arena{dir: dir, cluster: &cluster{failovers: o.has("failover")}}
	log, err := os.Create(filepath.Join(dir, "faults.log"))
	if err != nil {
		return a, err
	}
	a.cleanup(func() { _ = log.Close() })
	a.report = newReport(o, dir, log)
	if fakesClock(o) {
		if err := fakeClock(a); err != nil {
			return a, err
		}
	}
	a.cleanup(a.cluster.close)
	if err := a.cluster.start(ctx, settings); err != nil {
		return a, err
	}
	if o.has("unreadable") {
		if err := a.do(`CREATE EXTENSION pg_surgery`); err != nil {
			return a, fmt.Errorf("the fault unreadable: %w", err)
		}
	}
	if o.has("rewrite") {
		// Some providers hide the server's identifier. Relays know their database by the marks in it.
		if err := a.do(`REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`); err != nil {
			return a, fmt.Errorf("the fault rewrite: %w", err)
		}
		if found, err := a.server().Program("pg_repack"); err == nil {
			a.repack = found
		}
	}
	a.cleanup(a.broker.close)
	if err := a.broker.start(ctx, dir); err != nil {
		return a, err
	}
	dawdle, dawdleFor := int64(50), 8*time.Second
	if o.has("kill") {
		dawdle = 500 // tasks that were lost three times run alone, each for its 8 s
	}
	if o.only("standby") {
		dawdleFor = 25 * time.Second // longer than a lease lives without a heartbeat, and a standby is away
	}
	for i := range 4 {
		s, err := newSeat(a, o, app.Config{Role: app.RoleRelay, Name: fmt.Sprint("relay-", i),
			Dawdle: dawdle, DawdleFor: dawdleFor})
		if err != nil {
			return a, err
		}
		a.relays = append(a.relays, s)
	}
	for i := range o.producers {
		s, err := newSeat(a, o, app.Config{Role: app.RoleProducer, Name: fmt.Sprint("p", i),
			Seed: o.seed + uint64(i), Tasks: (o.tasks + o.producers - 1) / o.producers})
		if err != nil {
			return a, err
		}
		a.producers = append(a.producers, s)
	}
	return a, a.tail(ctx)
}

// tail looks at the relays by outbox tail until ctx ends, also at those of a server that has taken over.
// What happens to it is no violation.
func (a *arena) tail(ctx context.Context) error {
	c, err := admin.New(a.db, admin.Config{})
	if err != nil {
		return err
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	a.cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = c.Tail(ctx, a.superuser().String(), admin.TailFilter{}, func(e admin.TailEvent) error {
				if e.Event == admin.TailDisconnected {
					return errors.New("disconnected") // the next one may have another address
				}
				a.count("events of a tail", max(1, int(e.LeftOut)))
				return nil
			})
			wait(ctx, time.Second)
		}
	}()
	return nil
}

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

// newSeat starts the process.
func newSeat(a *arena, o options, c app.Config) (*seat, error) {
	p, err := proxy.New(a.address())
	if err != nil {
		return nil, err
	}
	c.URL, c.Driver, c.Dir, c.Group = a.url(p.Address()), o.driver, a.dir, o.group
	c.Broker, c.BrokerPassword = a.broker.url(), a.broker.file
	s := &seat{name: c.Name, proxy: p, config: c}
	if err := s.start(); err != nil {
		p.Close()
		return nil, err
	}
	s.wait.Go(s.supervise)
	a.cleanup(s.close)
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
	log, err := os.OpenFile(filepath.Join(c.Dir, s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p, err := child.Start(c, log)
	if err == nil {
		s.starts++
		s.process = &process{p, time.Now()}
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

// process is one of the app.
type process struct {
	*child.Process
	began time.Time
}

func (p *process) signal(s syscall.Signal) { _ = p.Signal(s) }

// young is how long a process may not know of SIGTERM yet.
const young = 2 * time.Second

var errStays = errors.New("it did not end after SIGTERM")

// terminate asks the process to end, and kills it if it has not within d.
func (p *process) terminate(d time.Duration) error {
	p.signal(syscall.SIGCONT) // it may be frozen
	p.signal(syscall.SIGTERM)
	select {
	case <-p.Ended:
		if p.Err != nil && time.Since(p.began) > young {
			return fmt.Errorf("it ended with: %w", p.Err)
		}
		return nil
	case <-time.After(d):
		p.signal(syscall.SIGKILL)
		<-p.Ended
		return errStays
	}
}
