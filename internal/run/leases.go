package run

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// unknownClaim is a claim whose commit may have failed or not.
type unknownClaim struct {
	back []*store.LeaseEnd // of its tasks
	xid  string
}

// Leases are what this relay holds of leased tasks, and ends.
type Leases struct {
	r     *Runner
	Ended func([]*LeasedRun) // is told of runs whose results are committed, or were given up
	// Stuck is told when PostgreSQL refuses a result again and again, one at a time: each time from the
	// third in a row on. first: it is the first time of this run.
	Stuck func(h *handler.Handler, err error, began time.Time, first bool)

	mu      sync.Mutex
	holders map[*lease]struct{}
	unknown []unknownClaim
	results
}

func NewLeases(r *Runner) *Leases {
	return &Leases{r: r, holders: map[*lease]struct{}{}, results: newResults()}
}

// hold notes a lease while its handler runs, until end if that is not zero: then its context ends,
// with the cause.
func (l *Leases) hold(one *lease, end time.Time, cause error) {
	l.mu.Lock()
	l.holders[one] = struct{}{}
	l.mu.Unlock()
	if !end.IsZero() {
		one.ctx.endAt(end, cause)
	}
	if l.r.Handling.Err() != nil { // who ends those that are held may have been there before
		one.ctx.cancel(context.Cause(l.r.Handling))
	}
}

// stop ends the contexts of all handlers, as the relay does not wait for them any more.
func (l *Leases) stop() {
	for _, one := range l.held() {
		one.ctx.cancel(context.Cause(l.r.Handling))
	}
}

func (l *Leases) drop(one *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holders, one)
}

func (l *Leases) held() []*lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.holders))
}

// took ends the context of a handler whose task another relay, or an operator, has taken away. A
// task that its own handler has completed is gone as well. The end of the run is logged.
func (l *Leases) took(one *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, runs := l.holders[one]; !runs || one.completing.Load() > 0 || one.completed.Load() != nil {
		return
	}
	delete(l.holders, one)
	one.ctx.cancel(outbox.ErrLeaseLost)
}

// Lose ends the contexts of all leased handlers: this relay has not reached the server for as long
// as its leases last, so others may run its tasks.
func (l *Leases) Lose() (lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.holders {
		one.ctx.cancel(outbox.ErrLeaseLost)
	}
	lost = len(l.holders)
	clear(l.holders)
	return lost
}

// release gives a claim back whose commit may have failed or not.
func (l *Leases) release(runs []*LeasedRun, xid string) {
	c := unknownClaim{xid: xid}
	for _, x := range runs {
		c.back = append(c.back, &store.LeaseEnd{Row: x.row, Token: x.token, Back: true, Change: store.Change{Attempt: x.row.Unclaimed()}, LostBy: x.row.LostBy})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown = append(l.unknown, c)
}

// Run gives back what claims of unknown outcome took, until stop is closed. Then it waits for the
// results that are being written.
func (l *Leases) Run(stop <-chan struct{}) {
	defer context.AfterFunc(l.r.Handling, l.stop)()
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		select {
		case <-retry.C:
			l.giveBack()
		case <-stop:
			l.writing.Wait()
			l.giveBack()
			return
		}
	}
}

// giveBack puts back what claims of unknown outcome took, once their outcome is known.
func (l *Leases) giveBack() {
	l.mu.Lock()
	claims := l.unknown
	l.unknown = nil
	l.mu.Unlock()
	for _, c := range claims {
		status, err := l.r.StatusOf(c.xid)
		if pgerr.Code(err) == "22023" {
			continue // another server has taken over, which never had it
		}
		if err == nil && status == "committed" {
			err = l.r.EndLeases(c.back)
			for _, e := range c.back {
				if err == nil && !e.Held {
					l.logLost(e.Row)
				}
			}
		}
		if err != nil || status == "in progress" {
			l.mu.Lock()
			l.unknown = append(l.unknown, c)
			l.mu.Unlock()
		}
	}
}
