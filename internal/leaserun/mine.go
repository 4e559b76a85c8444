package leaserun

import (
	"maps"
	"slices"
	"sync"

	"github.com/txoutbox/outbox/internal/store"
)

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
