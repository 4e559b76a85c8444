package admin

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/internal/timeline"
)

// CauseKind names why a task does not run.
type CauseKind string

// The kinds of causes. The first four say that the task does not wait. Later versions may have more.
const (
	CauseRunning     CauseKind = "running"
	CauseFinished    CauseKind = "finished"
	CauseDead        CauseKind = "dead"
	CauseGone        CauseKind = "gone"         // no task has the id
	CauseLost        CauseKind = "lost"         // its relay died; another one takes the task over
	CauseCopy        CauseKind = "copy"         // of another database
	CauseEnvironment CauseKind = "environment"  // relays of another one run nothing here
	CauseNoRelay     CauseKind = "no_relay"     // none is alive
	CauseNoHandler   CauseKind = "no_handler"   // in a living relay
	CausePaused      CauseKind = "paused"       // its type
	CauseScheduled   CauseKind = "scheduled"    // until its time
	CauseRetrying    CauseKind = "retrying"     // after a failed attempt
	CauseThrottled   CauseKind = "throttled"    // the other side asked to wait
	CauseExpired     CauseKind = "expired"      // it does not run any more, or will not
	CauseUnreadable  CauseKind = "unreadable"   // PostgreSQL cannot read its row
	CauseOrdered     CauseKind = "ordered"      // behind a task of its ordering key
	CauseGroup       CauseKind = "group"        // the places of its group key are taken
	CauseTypeLimit   CauseKind = "type_limit"   // handlers.MaxRunning
	CauseRelayLimit  CauseKind = "relay_limit"  // handlers.MaxRunningPerRelay
	CauseWorkers     CauseKind = "workers"      // those of each relay are busy
	CauseRate        CauseKind = "rate"         // handlers.Rate
	CauseSuspect     CauseKind = "suspect"      // its process died, and it runs beside few others
	CauseRowSecurity CauseKind = "row_security" // it hides tasks
	CauseQueued      CauseKind = "queued"       // others are before it, or it is about to run
	CauseUnknown     CauseKind = "unknown"      // a right is missing, or the schema is older
)

// Cause is one reason for which a task does not run. It has no payload and no key, but the last error.
type Cause struct {
	Kind   CauseKind
	Text   string    // a sentence, without its full stop
	Remedy string    // the command or the setting that changes it; "": none is needed
	Until  time.Time // zero: not known
	Tasks  []int64   // the tasks that it waits for, 100 at most
}

// Why says why a task does not run, or what has become of it.
type Why struct {
	TaskID int64
	State  State   // "": no task has the id
	Causes []Cause // what has to be mended first comes first; there is at least one
}

// whyOf is what a Why is made of.
type whyOf struct {
	schema       string // for commands; "" is the default
	task         Task
	now          time.Time
	origin       Origin
	alive        int       // relays
	handling     []handled // of these, with a handler for the type
	paused       bool
	pausedBy     string
	pausedAt     time.Time
	maxRunning   int
	rateUntil    time.Time // zero: a token is there
	lastHost     string    // of a dead relay that had a handler
	lastSeen     time.Time
	hidden       bool // rows, from this role
	secured      bool // row level security is on
	everGiven    int64
	ahead        int64 // ready tasks before it
	oldest       time.Time
	grouped      bool
	holders      []int64
	holder       *Task // the head of its ordering key
	places       int   // of its group key
	waitingAhead int64 // of its key
}

// handled is a living relay with a handler for the type.
type handled struct {
	host    string
	workers int            // 0: not known
	share   int            // of them that one type may have; 0: not known
	limit   int            // handlers.MaxRunningPerRelay; 0: none
	limited bool           // by handlers.MaxRunning
	runs    map[string]int // under way, by type
}

// mostAhead is where counts of tasks that are before another one end, as in outbox.waits_for.
const mostAhead = 1000

const whySQL = `/* outbox: why a task waits */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       COALESCE(p.paused, false), COALESCE(a.actor, ''), a.at, COALESCE(p.max_running, 0),
       (SELECT b.emptied_at + p.rate_per / p.rate * interval '1 microsecond' FROM outbox.bucket b
         WHERE b.task_type = $1 AND b.emptied_at > '-infinity'
           AND b.emptied_at + p.rate_per / p.rate * interval '1 microsecond' > clock_timestamp()),
       COALESCE(l.host, ''), l.alive_until, pg_catalog.row_security_active('outbox.task'),
       (SELECT c.relrowsecurity FROM pg_catalog.pg_class c WHERE c.oid = 'outbox.task'::pg_catalog.regclass),
       COALESCE(pg_catalog.pg_sequence_last_value('outbox.task_task_id_seq'::pg_catalog.regclass), 0),
       (SELECT count(*) FROM outbox.relay r WHERE r.alive_until > clock_timestamp())
  FROM (SELECT) AS one
  LEFT JOIN outbox.task_type p ON p.task_type = $1
  LEFT JOIN LATERAL (SELECT e.actor, e.at FROM outbox.audit e WHERE e.target = $1 AND e.action = 'pause'
                      ORDER BY e.entry_id DESC LIMIT 1) AS a ON p.paused
  LEFT JOIN LATERAL (SELECT r.host, r.alive_until FROM outbox.relay r
                      WHERE $1 = ANY (r.task_types) AND r.alive_until <= clock_timestamp()
                      ORDER BY r.alive_until DESC LIMIT 1) AS l ON true`

// A batch is one run. Of a run whose task is gone the type is not known.
const handledSQL = `/* outbox: the relays that have a handler, and what they run */
WITH handling AS MATERIALIZED (
  SELECT relay_id, host, workers, limits FROM outbox.relay
   WHERE alive_until > clock_timestamp() AND $1 = ANY (task_types) ORDER BY host, relay_id LIMIT 100),
run AS (
  SELECT j.relay_id, COALESCE(t.task_type, '') AS task_type
    FROM (SELECT relay_id, task_id FROM outbox.running WHERE NOT lost_connection LIMIT 10000) AS j
    LEFT JOIN outbox.task t ON t.task_id = j.task_id
   UNION ALL
  SELECT h.relay_id, l.task_type FROM handling h CROSS JOIN LATERAL (
    SELECT t.task_type FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = h.relay_id
     ORDER BY t.leased_until LIMIT 2000) AS l),
runs AS MATERIALIZED (SELECT relay_id, task_type, count(*) AS n FROM run GROUP BY relay_id, task_type)
SELECT h.host, COALESCE(h.workers, 0), COALESCE((h.limits ->> 'share')::integer, 0),
       COALESCE((h.limits -> 'types' -> $1 ->> 'relay')::integer, 0),
       COALESCE(h.limits -> 'types' -> $1 ? 'all', false),
       COALESCE((SELECT json_object_agg(r.task_type, r.n) FROM runs r WHERE r.relay_id = h.relay_id)::text, '{}')
  FROM handling h ORDER BY h.host, h.relay_id`

const aheadSQL = `/* outbox: how many tasks are before another one */
SELECT (SELECT count(*) FROM (
          SELECT FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = $1
             AND (t.priority, t.attempt, t.task_id) < ($2::smallint, $3::smallint, $4::bigint)
           ORDER BY t.priority, t.attempt, t.task_id LIMIT $5) AS before),
       (SELECT t.run_at FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = $1
         ORDER BY t.run_at, t.task_id LIMIT 1)`

const waitsForSQL = `/* outbox: what a waiting task waits for */
SELECT COALESCE(w.grouped, false), COALESCE(to_json(w.holders)::text, '[]'),
       COALESCE(w.places, 0), COALESCE(w.ahead, 0)
  FROM outbox.waits_for($1) AS w`

// Why says why a task does not run: each cause that holds, with the command or the setting that changes
// it. Of a task that runs, is finished, dead or gone it says that. It costs a bounded number of reads, with
// any backlog. It reads the database: it does not see the limits of WorkersByType, nor the rights that the
// relays' role lacks.
//
// An unknown id is no error. Where the role may read tasks, but not all of the rest, the cause is
// CauseUnknown; if the Client is that of a transaction, roll it back.
func (c *Client) Why(ctx context.Context, taskID int64) (Why, error) {
	w := whyOf{}
	if c.schema != schemaname.Default {
		w.schema = string(c.schema)
	}
	var err error
	if w.task, err = c.Task(ctx, taskID); errors.Is(err, ErrNotFound) {
		w.task = Task{ID: taskID}
	} else if err != nil {
		return Why{}, err
	}
	err = w.read(ctx, c)
	switch pgerr.Code(err) {
	case "42501", "42703", "42883": // a right, a column, a function
		return Why{taskID, w.task.State, []Cause{{Kind: CauseUnknown,
			Text:   "it is not known: the role lacks a right, or the schema is older than this program",
			Remedy: w.command("migrate up") + ", then " + w.command("roles apply")}}}, nil
	}
	if err != nil {
		return Why{}, failed(fmt.Sprintf("say why task %d waits", taskID), err)
	}
	return Why{TaskID: taskID, State: w.task.State, Causes: w.causes()}, nil
}

// command is one of cmd/outbox.
func (w *whyOf) command(format string, args ...any) string {
	schema := ""
	if w.schema != "" {
		schema = "--schema " + w.schema + " "
	}
	return "outbox " + schema + fmt.Sprintf(format, args...)
}

func (w *whyOf) read(ctx context.Context, c *Client) (err error) {
	if w.origin, err = c.Origin(ctx); err != nil {
		return err
	}
	if err = c.read(func(q outbox.Querier) error { return w.readType(ctx, c, q) }); err != nil {
		return err
	}
	if w.grouped || len(w.holders) != 1 {
		return nil
	}
	head, err := c.Task(ctx, w.holders[0])
	if err == nil {
		w.holder = &head
	} else if errors.Is(err, ErrNotFound) { // it has just ended
		err = nil
	}
	return err
}

// readType reads what holds for the type, and what is before the task.
func (w *whyOf) readType(ctx context.Context, c *Client, q outbox.Querier) error {
	var now int64
	var pausedAt, rateUntil, lastSeen, oldest sql.NullTime
	err := q.QueryRowContext(ctx, c.schema.SQL(whySQL), w.task.Type).Scan(&now, &w.paused, &w.pausedBy, &pausedAt,
		&w.maxRunning, &rateUntil, &w.lastHost, &lastSeen, &w.hidden, &w.secured, &w.everGiven, &w.alive)
	if err != nil {
		return err
	}
	w.now, w.pausedAt, w.rateUntil, w.lastSeen = time.UnixMicro(now), pausedAt.Time, rateUntil.Time, lastSeen.Time
	w.handling, err = rows(ctx, q, c.schema.SQL(handledSQL), []any{w.task.Type}, func(row scanner, h *handled) error {
		var runs string
		err := row.Scan(&h.host, &h.workers, &h.share, &h.limit, &h.limited, &runs)
		return errors.Join(err, json.Unmarshal([]byte(runs), &h.runs))
	})
	if err != nil {
		return err
	}
	switch w.task.State {
	case StateReady:
		err = q.QueryRowContext(ctx, c.schema.SQL(aheadSQL), w.task.Type, w.task.Priority, w.task.Attempt, w.task.ID,
			mostAhead).Scan(&w.ahead, &oldest)
		w.oldest = oldest.Time
	case StateWaiting:
		var holders string
		err = q.QueryRowContext(ctx, c.schema.SQL(waitsForSQL), w.task.ID).
			Scan(&w.grouped, &holders, &w.places, &w.waitingAhead)
		if err == nil {
			err = json.Unmarshal([]byte(holders), &w.holders)
		}
	}
	return err
}

// causes are all that hold, at least one.
func (w *whyOf) causes() []Cause {
	t := w.task
	switch t.State {
	case "":
		return []Cause{w.gone()}
	case StateFinished:
		return []Cause{{Kind: CauseFinished, Text: "it is finished: " + t.Outcome}}
	case StateDead:
		return []Cause{{Kind: CauseDead, Text: "it is a dead letter, with the reason " + string(t.Reason),
			Remedy: w.redrive()}}
	}
	if ran := w.running(); ran != nil {
		return []Cause{*ran}
	}
	var all []Cause
	for _, of := range []func() *Cause{w.noDatabase, w.noRelay, w.pause, w.expiry, w.time, w.key, w.typeLimit, w.rate,
		w.noWorker, w.suspect} {
		if c := of(); c != nil {
			all = append(all, *c)
		}
	}
	if len(all) == 0 {
		all = []Cause{w.queued()}
	}
	return all
}

func (w *whyOf) gone() Cause {
	c := Cause{Kind: CauseGone,
		Text: "no task has this id: it has finished and is not kept, was canceled or purged, has expired, or its " +
			"transaction has not committed",
		Remedy: "handlers.Retention keeps finished tasks; what was done by hand: " + w.command("audit")}
	switch {
	case w.hidden:
		return Cause{Kind: CauseRowSecurity, Text: "row level security hides tasks from this role, perhaps this one",
			Remedy: "a policy for the role, or ALTER ROLE … BYPASSRLS; relays need it as well"}
	case w.task.ID > w.everGiven:
		c.Text = "no task has been given this id yet, as far as the sequence of ids tells"
		c.Remedy = ""
	}
	return c
}

// running is the run that is under way, or was lost.
func (w *whyOf) running() *Cause {
	for _, r := range w.task.Runs {
		if !r.Lost {
			return &Cause{Kind: CauseRunning,
				Text: fmt.Sprintf("it runs, since %s in relay %s", stamp(r.StartedAt), r.RelayID)}
		}
	}
	if w.task.State != StateLeased {
		return nil
	}
	return &Cause{Kind: CauseLost,
		Text: "its relay died while it ran it, or its lease has run out: another relay takes it over",
		Remedy: "it takes 10 to 15 s while a relay is alive, and a minute where relay " + w.task.RelayID +
			" has no row any more: " + w.command("repair") + " does that at once"}
}

func (w *whyOf) noDatabase() *Cause {
	switch {
	case w.origin.Copy:
		return &Cause{Kind: CauseCopy, Text: w.origin.Problem, Remedy: w.origin.Remedy}
	case w.origin.Refused != "" && len(w.handling) == 0:
		return &Cause{Kind: CauseEnvironment, Text: w.origin.Problem, Remedy: w.origin.Remedy}
	}
	return nil
}

func (w *whyOf) noRelay() *Cause {
	last := ""
	if w.lastHost != "" {
		last = fmt.Sprintf("; the last one with a handler for it was on %s, until %s", w.lastHost, stamp(w.lastSeen))
	}
	switch {
	case w.origin.Refused != "" && w.alive == 0: // noDatabase says that
		return nil
	case w.alive == 0:
		return &Cause{Kind: CauseNoRelay, Text: "no relay is alive" + last, Remedy: "start a relay (relay.Run)"}
	case len(w.handling) == 0:
		return &Cause{Kind: CauseNoHandler, Text: "no living relay has a handler for the type " + w.task.Type + last,
			Remedy: "register one, or start the relays that have it"}
	}
	return nil
}

func (w *whyOf) pause() *Cause {
	if !w.paused {
		return nil
	}
	by := ""
	if w.pausedBy != "" {
		by = fmt.Sprintf(", by %s at %s", w.pausedBy, stamp(w.pausedAt))
	}
	return &Cause{Kind: CausePaused, Text: "its type is paused" + by, Remedy: w.command("resume %s", w.task.Type)}
}

// redrive is what makes a dead letter run.
func (w *whyOf) redrive() string {
	command := w.command("dead redrive %d", w.task.ID)
	if w.task.Reason == outbox.ReasonExpired {
		return "enqueue another one in its place; or let it run all the same: " + command
	}
	return "mend the cause of its last error, then: " + command
}

// expiry is that of a task that has not begun.
func (w *whyOf) expiry() *Cause {
	switch t := w.task; {
	case t.ExpiresAt.IsZero() || t.Attempt > 0 || t.Iterations > 0:
		return nil
	case !t.ExpiresAt.After(w.now):
		return &Cause{Kind: CauseExpired, Text: "it has expired: a relay ends it within 10 s, or when one has its type"}
	case (t.State == StateScheduled || t.State == StateWaiting) && !t.ExpiresAt.After(t.RunAt):
		return &Cause{Kind: CauseExpired, Text: "it expires before it is due", Until: t.ExpiresAt,
			Remedy: w.command("tasks run-now %d", t.ID)}
	}
	return nil
}

// time is what a scheduled task waits for.
func (w *whyOf) time() *Cause {
	t := w.task
	if t.State != StateScheduled && t.State != StateRetrying || !t.RunAt.After(w.now) {
		return nil
	}
	c := &Cause{Kind: CauseScheduled, Text: "it is scheduled", Until: t.RunAt,
		Remedy: w.command("tasks run-now %d", t.ID)}
	var last Event // of the timeline
	if n := len(t.Timeline); n > 0 {
		last = t.Timeline[n-1]
	}
	switch {
	case strings.HasPrefix(t.LastError, timeline.Unreadable):
		c.Kind, c.Text = CauseUnreadable, "PostgreSQL cannot read its row: "+t.LastError
		c.Remedy = "restore the row, or give the task up: " + w.command("tasks cancel %d", t.ID)
	case w.postponed():
		c = w.ofSuspect("the process of its last run died, so it waits until it may run beside few others")
	case last.At.Before(t.AttemptedAt) && last.LastAt.Before(t.AttemptedAt):
		// a later run did not fail
		if c.Text = "its handler has put it off (Snooze, RunAgain)"; last.At.IsZero() && t.LastError != "" {
			c.Text += ": " + t.LastError
		}
	case last.Kind == EventThrottled:
		c.Kind, c.Text = CauseThrottled, "the other side asked to wait: "+t.LastError
	case t.State == StateRetrying:
		c.Kind, c.Text = CauseRetrying, fmt.Sprintf("attempt %d failed", t.Attempt)
		if t.LastError != "" {
			c.Text += ": " + t.LastError
		}
		c.Remedy = "mend the cause; to try again at once: " + c.Remedy
	}
	return c
}

// key is what a waiting task waits for.
func (w *whyOf) key() *Cause {
	if w.task.State != StateWaiting || len(w.holders) == 0 {
		return nil
	}
	before := ""
	if w.waitingAhead > 0 {
		before = "; " + areBefore(w.waitingAhead, "of the key")
	}
	if w.grouped {
		c := &Cause{Kind: CauseGroup, Tasks: w.holders,
			Text: fmt.Sprintf("the places of its group key (%d) are taken by %s", w.places, taskNames(w.holders)) + before,
			Remedy: "handlers.MaxRunningPerKey allows more; what holds that one up: " +
				w.command("tasks show %d", w.holders[0]) + "; to remove it: " + w.command("tasks cancel %d", w.holders[0])}
		if n := len(w.holders); n < w.places {
			c.Text = fmt.Sprintf("%d of the places of its group key (%d) are taken by %s", n, w.places,
				taskNames(w.holders)) + before
			c.Remedy = "a relay is about to give the others"
		}
		return c
	}
	c := &Cause{Kind: CauseOrdered, Tasks: w.holders,
		Text: "it is behind " + taskNames(w.holders) + " of its ordering key" + before,
		Remedy: "why that one waits: " + w.command("tasks show %d", w.holders[0]) +
			"; to remove it, so that the key goes on: " + w.command("tasks cancel %d", w.holders[0])}
	if h := w.holder; h != nil {
		c.Text = fmt.Sprintf("it is behind task %d of its ordering key, which is %s%s", h.ID, h.State, before)
		if h.RunAt.After(w.now) {
			c.Until = h.RunAt
		}
	}
	return c
}

func (w *whyOf) typeLimit() *Cause {
	n, limited := 0, false
	for _, h := range w.handling {
		if h.limited {
			n, limited = n+h.runs[w.task.Type], true
		}
	}
	if !limited || n < w.maxRunning {
		return nil
	}
	return &Cause{Kind: CauseTypeLimit, Text: fmt.Sprintf("%d tasks of its type run, as many as may in all relays", n),
		Remedy: "handlers.MaxRunning allows more; for what runs: " + w.command("relays")}
}

func (w *whyOf) rate() *Cause {
	if w.rateUntil.IsZero() {
		return nil
	}
	return &Cause{Kind: CauseRate, Text: "the rate of its type is used up", Until: w.rateUntil,
		Remedy: "handlers.Rate allows more"}
}

// noWorker says that no relay with a handler can run it now, and why.
func (w *whyOf) noWorker() *Cause {
	var full, limited []string
	for _, h := range w.handling {
		of, all := h.runs[w.task.Type], 0
		for _, n := range h.runs {
			all += n
		}
		switch {
		case h.limit > 0 && of >= h.limit:
			limited = append(limited, fmt.Sprintf("%d in %s", of, h.host))
		case h.workers > 0 && all >= h.workers:
			full = append(full, fmt.Sprintf("%d of %s (%s)", h.workers, h.host, busyWith(h.runs)))
		case h.share > 0 && of >= h.share:
			full = append(full, fmt.Sprintf("%d of %s (%s; the last is for other types)", h.share, h.host, busyWith(h.runs)))
		default:
			return nil
		}
	}
	switch {
	case len(full) > 0:
		return &Cause{Kind: CauseWorkers, Text: "all workers are busy: " + strings.Join(append(full, limited...), ", "),
			Remedy: "relay.Config.Workers, more relays, or handlers.MaxRunningPerRelay for the types that are busy"}
	case len(limited) > 0:
		return &Cause{Kind: CauseRelayLimit,
			Text:   "each relay runs as many tasks of its type as it may: " + strings.Join(limited, ", "),
			Remedy: "handlers.MaxRunningPerRelay allows more"}
	}
	return nil
}

// busyWith is how many runs are of which type, the most first.
func busyWith(runs map[string]int) string {
	types := slices.SortedFunc(maps.Keys(runs), func(a, b string) int {
		return cmp.Or(cmp.Compare(runs[b], runs[a]), cmp.Compare(a, b))
	})
	for i, name := range types {
		types[i] = fmt.Sprintf("%d %s", runs[name], cmp.Or(name, "of an unknown type"))
	}
	return strings.Join(types[:min(len(types), 5)], ", ")
}

// postponed reports whether a relay has put a task off whose last run was lost, for the sake of another such task.
func (w *whyOf) postponed() bool {
	t := w.task
	return (t.State == StateScheduled || t.State == StateRetrying) && t.RunAt.After(w.now) && t.RelayID != ""
}

// suspect says that the process of its last runs died: relays choose beside which others it runs.
func (w *whyOf) suspect() *Cause {
	lost := 0
	for _, e := range w.task.Timeline {
		if lost++; e.Kind != EventLost {
			lost = 0
		}
	}
	for _, r := range w.task.Runs {
		if r.Lost {
			lost++
		}
	}
	last := w.task.MaxAttempts > 0 && w.task.MaxAttempts-w.task.Attempt <= 2
	if w.task.State == StateLeased || w.postponed() || lost == 0 || lost == 1 && !last {
		return nil
	}
	const text = "the process of its last run died, %d times in a row, so it runs beside few others"
	return w.ofSuspect(fmt.Sprintf(text, lost))
}

func (w *whyOf) ofSuspect(text string) *Cause {
	return &Cause{Kind: CauseSuspect, Text: text,
		Remedy: "find in the relays' output what ended it; to give the task up: " +
			w.command("tasks cancel %d", w.task.ID)}
}

// queued is the cause of a task that only has to wait its turn.
func (w *whyOf) queued() Cause {
	c := Cause{Kind: CauseQueued, Text: "a relay is about to make it ready"}
	late := w.now.Sub(w.task.RunAt)
	if w.task.State == StateReady {
		c.Text = "it is the next of its type"
		if w.ahead > 0 {
			c.Text = areBefore(w.ahead, "of its type") + ", by priority, attempts and id"
		}
		if !w.oldest.IsZero() && w.oldest.Before(w.now) {
			late = w.now.Sub(w.oldest)
			c.Text += fmt.Sprintf("; the oldest has been due for %v", late.Round(time.Millisecond))
		}
	}
	if late > 10*time.Second {
		c.Remedy = "a relay has a handler and free workers"
		if len(w.handling) > 0 {
			c.Remedy += ", on " + w.handling[0].host
		}
		c.Remedy += ": its log says what holds it up"
		if w.task.State != StateReady {
			c.Text = fmt.Sprintf("it has been due for %v, and a relay should have made it ready", late.Round(time.Second))
		}
		if w.secured {
			c.Remedy += "; row level security is on for outbox.task, and may hide the task from the relays' role"
		}
	}
	return c
}

func stamp(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }

// areBefore is like "3 tasks of its type are before it".
func areBefore(n int64, of string) string {
	switch {
	case n >= mostAhead:
		return fmt.Sprintf("%d tasks or more %s are before it", n, of)
	case n == 1:
		return fmt.Sprintf("1 task %s is before it", of)
	}
	return fmt.Sprintf("%d tasks %s are before it", n, of)
}

// taskNames is like "task 7", or "tasks 7, 8 and 3 more".
func taskNames(ids []int64) string {
	const most = 5
	if len(ids) == 1 {
		return fmt.Sprintf("task %d", ids[0])
	}
	var names []string
	for _, id := range ids[:min(len(ids), most)] {
		names = append(names, fmt.Sprint(id))
	}
	text := "tasks " + strings.Join(names, ", ")
	if more := len(ids) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
