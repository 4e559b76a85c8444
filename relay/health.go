package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Errors of Health. An outage that lasts is ErrOutage also when the heartbeat is gone by then.
var (
	// ErrNotRunning: the relay was not started, has ended, or is stopping and claims no more.
	ErrNotRunning = errors.New("relay: it is not running")
	// ErrOutage: PostgreSQL is unavailable: it is away, restarting, read-only or out of
	// connections. The relay tries again by itself.
	ErrOutage = errors.New("relay: PostgreSQL is unavailable")
	// ErrNoHeartbeat: no heartbeat came through, at the start or for as long as leases last (10 s),
	// though no outage is known yet. The relay claims nothing.
	ErrNoHeartbeat = upkeep.ErrNoHeartbeat
	// ErrTypeFails: tasks of a type could not be claimed or recorded three times in a row, and no
	// try has succeeded since. Or a quarter of the latest claims failed, the last one within a
	// minute. The relay tries again by itself, and other types go on. The text names the type and
	// the SQLSTATE.
	ErrTypeFails = errors.New("relay: tasks of a type cannot be claimed or recorded")
	// ErrCopy: the database is a copy of the one that its tasks were enqueued in, made by a dump, a
	// template or logical replication; or it belongs to another Config.Environment. The relay
	// claims nothing and fires no schedule, so nothing is sent twice. Tasks can be enqueued. The
	// text names the original and the remedy: outbox adopt, after which the relay begins within
	// seconds. docs/guide/copies.md has more.
	ErrCopy = origin.ErrCopy
	// ErrOrderingFails: the next tasks of ordering keys could not be made ready three times in a
	// row. The relay tries again by itself, and ready tasks go on. The text has the SQLSTATE.
	ErrOrderingFails = errors.New("relay: the next tasks of ordering keys cannot be made ready")
)

// health is the state of one run that Health reads. Its methods are safe for concurrent use.
type health struct {
	startedAt time.Time
	ctx       context.Context             // of Run: the run claims no more after its end
	leaseEnd  func() time.Time            // unless a heartbeat comes through; zero if none has
	tell      func(e Event, at time.Time) // the observers
	log       *slog.Logger

	mu       sync.Mutex
	outage   time.Time              // when it began; zero: there is none
	failing  map[string]typeFailure // by type
	copied   error                  // the database is a copy
	ordering error                  // of the next tasks of ordering keys
	hidden   error                  // row level security hides rows
}

type typeFailure struct {
	err   error
	until time.Time // Health says so; zero: until it works
}

// err is what Health returns.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.copied != nil && h.outage.IsZero():
		return h.copied
	case h.ctx.Err() != nil:
		return fmt.Errorf("%w any more: it is stopping", ErrNotRunning)
	case !h.outage.IsZero():
		began, lasts := h.outage.UTC().Format(time.RFC3339), time.Since(h.outage).Round(100*time.Millisecond)
		return fmt.Errorf("%w since %s (%v)", ErrOutage, began, lasts)
	}
	switch end := h.leaseEnd(); {
	case h.hidden != nil:
		return h.hidden
	case end.IsZero():
		return fmt.Errorf("%w yet, %v after the start", ErrNoHeartbeat, time.Since(h.startedAt).Round(100*time.Millisecond))
	case !time.Now().Before(end):
		return fmt.Errorf("%w for %v", ErrNoHeartbeat, (time.Since(end) + upkeep.LeaseDuration).Round(100*time.Millisecond))
	}
	failing := []error{h.ordering}
	for _, taskType := range slices.Sorted(maps.Keys(h.failing)) {
		if f := h.failing[taskType]; f.until.IsZero() || time.Now().Before(f.until) {
			failing = append(failing, f.err)
		}
	}
	return errors.Join(failing...)
}

func (h *health) begin() { h.tell(EventStarted, h.startedAt) }

func (h *health) end() {
	h.mu.Lock()
	outage := !h.outage.IsZero()
	h.mu.Unlock()
	now := time.Now()
	if outage {
		h.tell(EventOutageEnded, now)
	}
	h.tell(EventStopped, now)
}

// outageBegan notes and logs the beginning of an outage.
func (h *health) outageBegan(err error, at time.Time) {
	h.log.Warn("outbox: PostgreSQL is unavailable; the relay waits and tries again", "error", pgerr.LogText(err))
	h.setOutage(at)
	h.tell(EventOutageBegan, at)
}

// outageEnded notes and logs the end of an outage.
func (h *health) outageEnded(after time.Duration, at time.Time) {
	h.log.Info("outbox: PostgreSQL is available again", "after", after.Round(time.Millisecond))
	h.setOutage(time.Time{})
	h.tell(EventOutageEnded, at)
}

func (h *health) setOutage(since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outage = since
}

// setCopied notes that the database is a copy; nil: it was adopted.
func (h *health) setCopied(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.copied = err
}

// typeFails notes failures of a type; nil: it works again.
func (h *health) typeFails(taskType string, f *plan.Failing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f == nil {
		delete(h.failing, taskType)
		return
	}
	failure := typeFailure{err: fmt.Errorf("%w: %q %s", ErrTypeFails, taskType, failuresText(f))}
	if !f.InARow() {
		failure.until = f.At.Add(shareLasts)
	}
	h.failing[taskType] = failure
}

// orderingFails notes failures to make the next tasks of ordering keys ready; nil: it works again.
func (h *health) orderingFails(f *plan.Failing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ordering = nil
	if f != nil {
		h.ordering = fmt.Errorf("%w: %s", ErrOrderingFails, failuresText(f))
	}
}

// shareLasts is for how long Health reports failures now and then after the latest.
const shareLasts = time.Minute

// failuresText says since when and how claims fail, without the words of the driver or the server.
func failuresText(f *plan.Failing) string {
	how := "a quarter or more of the tries fail"
	if f.InARow() {
		how = fmt.Sprintf("%d failures in a row", f.Times)
	}
	class := "as the log says"
	switch code := pgerr.Code(f.Latest.Err); {
	case code != "":
		class = "with SQLSTATE " + code
	case errors.Is(f.Latest.Err, context.DeadlineExceeded):
		class = "as it took too long"
	case pgerr.Lost(f.Latest.Err):
		class = "as the connection was lost"
	}
	return fmt.Sprintf("since %s, %s, the last one %s", f.Since.UTC().Format(time.RFC3339), how, class)
}

// rowsHidden notes whether row level security hides rows, and returns the note before.
func (h *health) rowsHidden(hidden error) (before error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, h.hidden = h.hidden, hidden
	return before
}
