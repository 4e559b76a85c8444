// Package leaserun runs Leased handlers. A claim commits before its handlers run; each run has a
// lease, whose token fences its result:
//
//	claimed → running → ended → its result waits for a group → written
//	             ↓ lease lost, canceled, drained, timeout: its context ends
//	             ↓ 5 s later: abandoned
//
// run.go claims and runs, leases.go has all leases of a relay, lease.go one lease with
// Task.Complete, results.go the groups of results.
package leaserun

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/progress"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// Params are what Leases need.
type Params struct {
	Store    *store.Store
	Report   *report.Reporter
	Suspects *decide.Suspects
	Board    *progress.Board
	NewPace  func() pg.Pace
	Handling context.Context // ends when the drain timeout has passed
	// Ended is told of results that are committed, or were given up.
	Ended func([]*Result)
	// Stuck is told when PostgreSQL refuses a result again and again, one at a time: each time from the
	// third in a row on. first: it is the first time of this run.
	Stuck func(h *handler.Handler, err error, began time.Time, first bool)
}

// Leases are the leased tasks of this relay, from their claim to their results.
type Leases struct {
	Params
	abandoned chan struct{} // closed when no result is waited for any more
	stopping  chan struct{} // closed at the end of Run

	mu      sync.Mutex
	holders map[*lease]struct{} // their handlers run
	mine    *mine
	results *results
}

// New returns Leases.
func New(p Params) *Leases {
	return &Leases{Params: p, abandoned: make(chan struct{}), stopping: make(chan struct{}),
		holders: map[*lease]struct{}{}, mine: newMine(), results: newResults()}
}

// Abandon ends the wait for results that are not written yet.
func (l *Leases) Abandon() { close(l.abandoned) }

// hold notes a lease while its handler runs, until end if that is not zero: then its context ends,
// with the cause.
func (l *Leases) hold(one *lease, end time.Time, cause error) {
	l.mu.Lock()
	l.holders[one] = struct{}{}
	l.mu.Unlock()
	if !end.IsZero() {
		one.ctx.EndAt(end, cause)
	}
	if l.Handling.Err() != nil { // who ends those that are held may have been there before
		one.ctx.Cancel(context.Cause(l.Handling))
	}
}

// stop ends the contexts of all handlers, as the relay does not wait for them any more.
func (l *Leases) stop() {
	for _, one := range l.held() {
		one.ctx.Cancel(context.Cause(l.Handling))
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

// Held are the leases of this relay, from their claims until their results are written.
func (l *Leases) Held() []store.Lease { return l.mine.all() }

// LeftOver returns those of this relay's leased rows that it does not run. The rows are to be read
// before: a lease that is claimed later is not among them, and a lease that has ended meanwhile has
// no row with its token any more.
func (l *Leases) LeftOver(rows []store.Lease) []store.Lease { return l.mine.leftOver(rows) }

// Underway are the tasks whose handlers run, by type.
func (l *Leases) Underway() map[string][]int64 {
	out := map[string][]int64{}
	for _, one := range l.held() {
		out[one.row.TaskType] = append(out[one.row.TaskType], one.row.ID)
	}
	return out
}

// Cancel ends the contexts of the handlers of canceled tasks, and of those whose lease another relay
// or an operator has taken. The lease of a task that its own handler has completed is not there
// either. The end of the run is logged.
func (l *Leases) Cancel(canceled map[int64]bool, lost map[store.Lease]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.holders {
		switch {
		case lost[one.id()] && one.completing.Load() == 0 && one.end.Load() == nil:
			delete(l.holders, one)
			one.ctx.Cancel(outbox.ErrLeaseLost)
		case canceled[one.row.ID]:
			one.ctx.Cancel(outbox.ErrCanceled)
		}
	}
	l.mine.lost(lost)
}

// Lose ends the contexts of all leased handlers: this relay has not reached the server for as long
// as its leases last, so others may run its tasks.
func (l *Leases) Lose() (lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.holders {
		one.ctx.Cancel(outbox.ErrLeaseLost)
	}
	lost = len(l.holders)
	clear(l.holders)
	return lost
}

// Run ends the handlers' contexts when Handling ends. Once stop is closed it waits for the results
// that are being written.
func (l *Leases) Run(stop <-chan struct{}) {
	defer context.AfterFunc(l.Handling, l.stop)()
	<-stop
	close(l.stopping)
	l.results.writing.Wait()
}

// mine are the leases of this relay: each from before the statement that claims it until its result
// is known to be committed. So a leased row of this relay that is none of them is left over: its
// run has ended here, and the database has lost the result, or no run has begun.
type mine struct {
	mu       sync.Mutex
	claiming map[string]struct{}  // tokens of claims whose outcome is not known
	leases   map[store.Lease]bool // true: the result was given up
}

func newMine() *mine {
	return &mine{claiming: map[string]struct{}{}, leases: map[store.Lease]bool{}}
}

// claim notes the token of a claim, before the claim is sent.
func (m *mine) claim(token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claiming[token] = struct{}{}
}

// claimed notes what a claim has taken, if anything.
func (m *mine) claimed(token string, rows []*store.Row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range rows {
		m.leases[store.Lease{TaskID: r.ID, Token: token}] = false
	}
	delete(m.claiming, token)
}

// written notes that the result of a run is committed, or that the lease was lost.
func (m *mine) written(id store.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, id)
}

// givenUp notes that the result of a run will not be written: its task stays leased until the lease
// ends, and the run is an attempt. A task whose result PostgreSQL refuses would run for ever else.
func (m *mine) givenUp(id store.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases[id] = true
}

// lost forgets results that were given up, once their leases have ended.
func (m *mine) lost(lost map[store.Lease]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.leases, func(id store.Lease, givenUp bool) bool { return givenUp && lost[id] })
}

func (m *mine) all() []store.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.leases))
}

// leftOver returns those of the leased rows of this relay that are none of its leases.
func (m *mine) leftOver(rows []store.Lease) (out []store.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range rows {
		_, held := m.leases[id]
		_, claiming := m.claiming[id.Token]
		if !held && !claiming {
			out = append(out, id)
		}
	}
	return out
}
