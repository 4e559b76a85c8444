package relay

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	tryLeast = 100 * time.Millisecond // between two tries of the dispatcher during an outage
	tryMost  = 300 * time.Millisecond // so a relay is back that soon without any sign
)

// outage paces a relay whose database is gone, restarting, read-only, out of connections or otherwise
// refusing: it waits after each failure, up to tryMost with jitter, and logs once when it begins and once
// when it ends. It belongs to the dispatcher, whose tries are the only frequent ones of a relay.
type outage struct {
	log     *slog.Logger
	changed func(Event, time.Time)
	backoff retry.Backoff // nil while all is well
	since   time.Time
	tried   time.Time // when the latest pause began
	until   time.Time // when it ends
	ended   time.Time // the last one
}

// fail and ok hear of something that began at some time: what began before an outage does not end it, and what began
// before its end does not begin another.
func (o *outage) fail(err error, began, now time.Time) {
	if began.Before(o.ended) {
		return
	}
	if o.backoff == nil {
		o.backoff = retry.WithCappedDuration(tryMost, retry.NewExponential(tryLeast))
		o.since = now
		o.log.Warn("outbox: PostgreSQL cannot be worked with; the relay waits and tries again", "error", safeText(err))
		o.changed(OutageBegan, now)
	}
	if now.Before(o.until) {
		return // one of several that failed together
	}
	wait, _ := o.backoff.Next()
	o.tried, o.until = now, now.Add(wait/2+rand.N(wait/2))
}

// hasten ends the pause soon, at a sign that PostgreSQL is back. The sign may be of another database of the process, and
// hundreds of relays may see it at once.
func (o *outage) hasten(now time.Time) {
	soon := now
	if least := o.tried.Add(tryLeast); soon.Before(least) {
		soon = least
	}
	if soon = soon.Add(rand.N(tryLeast)); soon.Before(o.until) {
		o.until = soon
	}
}

func (o *outage) ok(began, now time.Time) {
	if o.backoff != nil && began.After(o.since) {
		o.log.Info("outbox: PostgreSQL can be worked with again", "after", now.Sub(o.since).Round(time.Millisecond))
		o.backoff, o.until, o.ended = nil, time.Time{}, now
		o.changed(OutageEnded, now)
	}
}

func (o *outage) active() bool { return o.backoff != nil }

// broadcast tells all who wait for it that PostgreSQL has answered after an error.
type broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil if nobody waits
}

// await returns a channel that the next send closes.
func (b *broadcast) await() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// pace is how a loop other than the dispatcher waits while its connection fails: up to 2 s, or until PostgreSQL has
// answered another loop.
type pace struct {
	r        *Relay
	backoff  retry.Backoff   // nil while all is well
	answered <-chan struct{} // ends the pause; nil while all is well
}

// try begins a try. An answer to another loop in its middle ends the pause after it.
func (p *pace) try() { p.answered = p.r.answered.await() }

// fail returns how long the loop is to wait. The dispatcher finds out about the first failure, and when it is over.
func (p *pace) fail() time.Duration {
	if p.backoff == nil {
		p.backoff = retry.WithJitterPercent(30, retry.WithCappedDuration(2*time.Second, retry.NewExponential(50*time.Millisecond)))
		p.r.wake()
	}
	wait, _ := p.backoff.Next()
	return wait
}

func (p *pace) ok() {
	p.answered = nil
	if p.backoff != nil {
		p.backoff = nil
		p.r.answers()
	}
}

// answers ends the pauses of all loops, as PostgreSQL has answered after an error.
func (r *Relay) answers() {
	r.answered.send()
	r.wake()
}

// safeText is err's text for the log. Drivers put the connection string, or parts of it, into the error when it
// does not parse.
func safeText(err error) string {
	text := errorText(err)
	if pgerr.Code(err) == "" && pgerr.RepeatsDSN(text) {
		return "the connection failed; the error is not shown, as it repeats the connection string"
	}
	return text
}

// pause waits for d.
func pause(d time.Duration) { <-time.After(d) }

// endedTransaction reports whether err says that the claim's transaction or its savepoint is not there any
// more: only the handler can have ended it.
func endedTransaction(code string, err error) bool {
	return code == "25P01" || code == "3B001" || errors.Is(err, errTxDone) || errors.Is(err, errOtherTransaction) ||
		strings.Contains(err.Error(), "unexpected transaction status")
}
