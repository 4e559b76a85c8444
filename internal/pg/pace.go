package pg

import (
	"sync"
	"time"

	"github.com/sethvargo/go-retry"
)

// Broadcast tells all waiting loops that PostgreSQL has answered after an error.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil if nobody waits
}

// await returns a channel that the next Send closes.
func (b *Broadcast) await() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send ends the pauses of all waiting loops.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Pace is how a loop other than the dispatcher waits while its connection fails: up to 2 s, or
// until PostgreSQL has answered another loop. It is not the dispatcher's Outage: with the
// dispatcher's short pauses a relay's five loops would dial 15 to 30 times a second.
type Pace struct {
	signal   *Broadcast      // that PostgreSQL has answered
	wake     func()          // lets the dispatcher poll
	backoff  retry.Backoff   // nil without a failure
	Answered <-chan struct{} // ends the pause; nil without a failure
}

// NewPace waits for a signal, and calls wake at the first failure and at its end.
func NewPace(signal *Broadcast, wake func()) Pace { return Pace{signal: signal, wake: wake} }

// Try begins a try. An answer to another loop in its middle ends the pause after it.
func (p *Pace) Try() { p.Answered = p.signal.await() }

// Fail returns how long the loop is to wait. The dispatcher finds out about the first failure, and
// when it is over.
func (p *Pace) Fail() time.Duration {
	if p.backoff == nil {
		doubling := retry.NewExponential(50 * time.Millisecond)
		p.backoff = retry.WithJitterPercent(30, retry.WithCappedDuration(2*time.Second, doubling))
		p.wake()
	}
	wait, _ := p.backoff.Next()
	return wait
}

// OK ends the pauses of all loops after a failure.
func (p *Pace) OK() {
	p.Answered = nil
	if p.backoff != nil {
		p.backoff = nil
		p.signal.Send()
		p.wake()
	}
}
