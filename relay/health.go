package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// ErrPoolClosed: the app closed the *sql.DB of a relay that worked. Run returns it, and Stop after
// Start: the handlers' contexts end, and the tasks run again in another relay.
var ErrPoolClosed = pg.ErrPoolClosed

// ErrPoolBusy: no connection of the *sql.DB became free for the relay within 10 s or so: the relays
// and the app that share it need more than its limit (SetMaxOpenConns). The relay runs nothing, and
// goes on by itself when it gets a connection. The text has the limit, how many are in use, how
// many relays of this process run on it, and what they need. It is no sign of an outage of
// PostgreSQL.
var ErrPoolBusy = pg.ErrPoolBusy

// Errors of Health. An outage that lasts is ErrOutage or ErrRefused also when the heartbeat is gone
// by then.
var (
	// ErrNotRunning: the relay was not started, has ended, or is stopping and claims no more.
	ErrNotRunning = errors.New("relay: it is not running")
	// ErrOutage: PostgreSQL is unavailable: it is away, restarting, read-only or out of
	// connections. The relay tries again by itself.
	ErrOutage = errors.New("relay: PostgreSQL is unavailable")
	// ErrRefused: PostgreSQL answers, and refuses a statement or the login of the relay for a
	// reason that waiting does not remove: a right, a function, a table, the schema or the database is
	// missing. The text names it, the role, and what to do. The relay tries again by itself, and
	// goes on once it is mended. If the refusal is of a part of its work, the rest goes on.
	ErrRefused = access.ErrRefused
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
	// seconds. https://github.com/txoutbox/outbox/blob/main/docs/guide/copies.md has more.
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
	refusal  string                 // its reason if no waiting mends it; else ""
	busy     error                  // its reason if it is an ErrPoolBusy; else nil
	refused  map[string]string      // the reason, by part of the relay's work that PostgreSQL refuses
	failing  map[string]typeFailure // by type
	copied   error                  // the database is a copy
	ordering error                  // of the next tasks of ordering keys
	hidden   error                  // row level security hides rows

	telling                 sync.Mutex // observers, one at a time
	toldOutage, toldRefused bool
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
		if h.refusal != "" {
			return fmt.Errorf("%w since %s (%v): %s", ErrRefused, began, lasts, h.refusal)
		}
		if h.busy != nil {
			return fmt.Errorf("%w; since %s (%v)", h.busy, began, lasts)
		}
		return fmt.Errorf("%w since %s (%v)", ErrOutage, began, lasts)
	}
	switch end := h.leaseEnd(); {
	case h.hidden != nil:
		return h.hidden
	case len(h.refused) > 0: // which may be why there is no heartbeat
	case end.IsZero():
		return fmt.Errorf("%w yet, %v after the start", ErrNoHeartbeat, time.Since(h.startedAt).Round(100*time.Millisecond))
	case !time.Now().Before(end):
		return fmt.Errorf("%w for %v", ErrNoHeartbeat, (time.Since(end) + upkeep.LeaseDuration).Round(100*time.Millisecond))
	}
	failing := append(h.refusals(), h.ordering)
	for _, taskType := range slices.Sorted(maps.Keys(h.failing)) {
		if f := h.failing[taskType]; f.until.IsZero() || time.Now().Before(f.until) {
			failing = append(failing, f.err)
		}
	}
	return errors.Join(failing...)
}

func (h *health) begin() { h.tell(EventStarted, h.startedAt) }

func (h *health) end() {
	now := time.Now()
	h.mu.Lock()
	h.outage, h.refusal, h.busy = time.Time{}, "", nil
	clear(h.refused)
	clear(h.failing)
	h.ordering = nil
	h.mu.Unlock()
	h.tellStates(now)
	h.tell(EventStopped, now)
}

// outageBegan notes and logs that the relay cannot work with PostgreSQL. It is called again where
// the reason may be another.
func (h *health) outageBegan(o plan.OutageBegan) {
	refusal := ""
	if o.Lasting {
		refusal = access.Reason(o.Err)
	}
	var busy error
	if errors.Is(o.Err, ErrPoolBusy) {
		busy = o.Err
	}
	h.mu.Lock()
	sameKind := (h.refusal == "") == (refusal == "") && (h.busy == nil) == (busy == nil)
	known := !h.outage.IsZero() && sameKind && h.refusal == refusal
	if h.outage.IsZero() || !sameKind {
		h.outage = o.At
	}
	h.refusal, h.busy = refusal, busy
	h.mu.Unlock()
	switch text := pgerr.LogText(o.Err); {
	case known:
		return
	case o.Lasting:
		h.log.Error("outbox: PostgreSQL refuses what the relay needs, which no waiting mends; the relay runs nothing "+
			"until it is mended", "error", text)
	case busy != nil:
		h.log.Warn("outbox: the relay waits for a connection of its *sql.DB, and runs nothing", "error", text)
	default:
		h.log.Warn("outbox: PostgreSQL is unavailable; the relay waits and tries again", "error", text)
	}
	h.tellStates(o.At)
}

// outageEnded notes and logs that the relay works with PostgreSQL again.
func (h *health) outageEnded(after time.Duration, at time.Time) {
	h.mu.Lock()
	refused, busy := h.refusal != "", h.busy != nil
	h.outage, h.refusal, h.busy = time.Time{}, "", nil
	h.mu.Unlock()
	text := "outbox: PostgreSQL is available again"
	switch {
	case busy:
		text = "outbox: the relay has a connection of its *sql.DB again"
	case refused:
		text = "outbox: PostgreSQL refuses nothing that the relay needs any more"
	}
	h.log.Info(text, "after", after.Round(time.Millisecond))
	h.tellStates(at)
}

// partRefused notes that PostgreSQL refuses a part of the relay's work; nil: no more. It logs each
// reason once.
func (h *health) partRefused(part string, err error) {
	h.mu.Lock()
	before, reason := h.refused[part], ""
	if err != nil {
		reason = access.Reason(err)
	}
	known := slices.Contains(slices.Collect(maps.Values(h.refused)), reason)
	if h.refused[part] = reason; reason == "" {
		delete(h.refused, part)
	}
	remains := slices.Contains(slices.Collect(maps.Values(h.refused)), before)
	h.mu.Unlock()
	if before != "" && !remains {
		h.log.Info("outbox: PostgreSQL refuses a part of the relay's work no more", "part", part)
	}
	if reason != "" && !known {
		h.log.Error("outbox: PostgreSQL refuses a part of the relay's work, which no waiting mends; it is tried again",
			"part", part, "error", pgerr.LogText(err))
	}
	h.tellStates(time.Now())
}

// refusals are the parts of the relay's work that PostgreSQL refuses, by reason.
func (h *health) refusals() (out []error) {
	parts := map[string][]string{}
	for _, part := range slices.Sorted(maps.Keys(h.refused)) {
		parts[h.refused[part]] = append(parts[h.refused[part]], part)
	}
	for _, reason := range slices.Sorted(maps.Keys(parts)) {
		out = append(out, fmt.Errorf("%w: %s: %s", ErrRefused, strings.Join(parts[reason], ", "), reason))
	}
	return out
}

// tellStates tells observers which outages and refusals have begun and ended since the last call.
func (h *health) tellStates(at time.Time) {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.mu.Lock()
	outage := !h.outage.IsZero() && h.refusal == ""
	refused := h.refusal != "" || len(h.refused) > 0 || errors.Is(h.ordering, ErrRefused)
	for _, f := range h.failing {
		refused = refused || errors.Is(f.err, ErrRefused)
	}
	h.mu.Unlock()
	for _, s := range []struct {
		told         *bool
		is           bool
		began, ended Event
	}{
		{&h.toldOutage, outage, EventOutageBegan, EventOutageEnded},
		{&h.toldRefused, refused, EventRefusalBegan, EventRefusalEnded},
	} {
		switch {
		case s.is && !*s.told:
			h.tell(s.began, at)
		case !s.is && *s.told:
			h.tell(s.ended, at)
		}
		*s.told = s.is
	}
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
	if f == nil {
		delete(h.failing, taskType)
	} else {
		failure := typeFailure{err: withReason(f, fmt.Errorf("%w: %q %s", ErrTypeFails, taskType, failuresText(f)))}
		if !f.InARow() {
			failure.until = f.At.Add(shareLasts)
		}
		h.failing[taskType] = failure
	}
	h.mu.Unlock()
	h.tellStates(time.Now())
}

// orderingFails notes failures to make the next tasks of ordering keys ready; nil: it works again.
func (h *health) orderingFails(f *plan.Failing) {
	h.mu.Lock()
	h.ordering = nil
	if f != nil {
		h.ordering = withReason(f, fmt.Errorf("%w: %s", ErrOrderingFails, failuresText(f)))
	}
	h.mu.Unlock()
	h.tellStates(time.Now())
}

// withReason adds what is missing, if the latest failure names it.
func withReason(f *plan.Failing, err error) error {
	if !f.Latest.Named {
		return err
	}
	return fmt.Errorf("%w; %w: %s", err, ErrRefused, access.Reason(f.Latest.Err))
}

// shareLasts is for how long Health reports failures now and then after the latest.
const shareLasts = time.Minute

// failuresText says since when and how claims fail, without the words of the driver or the server.
func failuresText(f *plan.Failing) string {
	how := "a quarter or more of the tries fail"
	if f.InARow() {
		if how = fmt.Sprintf("%d failures in a row", f.Times); f.Times == 1 {
			how = "1 failure"
		}
	}
	class := "as the log says"
	switch code := pgerr.Code(f.Latest.Err); {
	case code != "":
		class = "with SQLSTATE " + code
	case errors.Is(f.Latest.Err, ErrPoolBusy):
		class = "as all connections of the *sql.DB were in use"
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
