//go:build unix

package main

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// arena is what faults break.
type arena struct {
	*cluster
	*tally
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
