package relay

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// outage paces a relay whose database is gone, restarting, read-only, out of connections or otherwise
// refusing: it waits longer after each failure, from 100 ms to 5 s with jitter, and logs once when it
// begins and once when it ends. It belongs to the dispatcher.
type outage struct {
	log     *slog.Logger
	changed func(Event, time.Time)
	backoff retry.Backoff // nil while all is well
	since   time.Time
	until   time.Time
	ended   time.Time // the last one
}

// fail and ok hear of something that began at some time: what began before an outage does not end it, and what began
// before its end does not begin another.
func (o *outage) fail(err error, began, now time.Time) {
	if began.Before(o.ended) {
		return
	}
	if o.backoff == nil {
		o.backoff = retry.WithCappedDuration(5*time.Second, retry.NewExponential(100*time.Millisecond))
		o.since = now
		o.log.Warn("outbox: PostgreSQL cannot be worked with; the relay waits and tries again", "error", safeText(err))
		o.changed(OutageBegan, now)
	}
	if now.Before(o.until) {
		return // one of several that failed together
	}
	wait, _ := o.backoff.Next()
	o.until = now.Add(wait/2 + rand.N(wait/2))
}

func (o *outage) ok(began, now time.Time) {
	if o.backoff != nil && began.After(o.since) {
		o.log.Info("outbox: PostgreSQL can be worked with again", "after", now.Sub(o.since).Round(time.Millisecond))
		o.backoff, o.until, o.ended = nil, time.Time{}, now
		o.changed(OutageEnded, now)
	}
}

func (o *outage) active() bool { return o.backoff != nil }

// newLoopBackoff is how a loop other than the dispatcher paces itself while its connection fails.
func newLoopBackoff() retry.Backoff {
	return retry.WithJitterPercent(30, retry.WithCappedDuration(2*time.Second, retry.NewExponential(50*time.Millisecond)))
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
