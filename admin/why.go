package admin

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
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

// Cause is one reason for which a task does not run. It has no payload and no key.
type Cause struct {
	Kind   CauseKind
	Text   string    // a sentence, without its full stop
	Remedy string    // the command or the setting that changes it; "": none is needed
	Until  time.Time // zero: not known
	Tasks  []int64   // the tasks that it waits for, 1,000 at most
}

// Why says why a task does not run, or what has become of it.
type Why struct {
	TaskID int64
	State  State   // "": no task has the id
	Causes []Cause // what has to be mended first comes first; there is at least one
}

// whyOf is what a Why is made of.
type whyOf struct {
	task         Task
	now          time.Time
	origin       Origin
	relays       []Relay // that are alive
	handling     []Relay // of these, with a handler for the type
	paused       bool
	pausedBy     string
	pausedAt     time.Time
	maxRunning   int
	rateUntil    time.Time // zero: a token is there
	lastHost     string    // of a dead relay that had a handler
	lastSeen     time.Time
	perRelay     map[string]int // handlers.MaxRunningPerRelay by relay
	hidden       bool           // rows, from this role
	secured      bool           // row level security is on
	ahead        int64
	oldest       time.Time
	grouped      bool
	holders      []int64
	holder       *Task // the head of its ordering key
	waitingAhead int64
	everGiven    int64 // the last id
}

// Counts of tasks that are before another one end there.
const mostAhead = 1000

const whySQL = `/* outbox: why a task waits */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       COALESCE(p.paused, false), COALESCE(a.actor, ''), a.at, COALESCE(p.max_running, 0),
       (SELECT b.emptied_at + p.rate_per / p.rate * interval '1 microsecond' FROM outbox.bucket b
         WHERE b.task_type = $1 AND b.emptied_at > '-infinity'
           AND b.emptied_at + p.rate_per / p.rate * interval '1 microsecond' > clock_timestamp()),
       COALESCE(l.host, ''), l.alive_until,
       COALESCE((SELECT json_object_agg(r.relay_id, r.max_running -> $1) FROM outbox.relay r
                  WHERE r.alive_until > clock_timestamp() AND r.max_running ? $1)::text, '{}'),
       pg_catalog.row_security_active('outbox.task'),
       (SELECT c.relrowsecurity FROM pg_catalog.pg_class c WHERE c.oid = 'outbox.task'::pg_catalog.regclass),
       COALESCE(pg_catalog.pg_sequence_last_value('outbox.task_task_id_seq'::pg_catalog.regclass), 0)
  FROM (SELECT) AS one
  LEFT JOIN outbox.task_type p ON p.task_type = $1
  LEFT JOIN LATERAL (SELECT e.actor, e.at FROM outbox.audit e WHERE e.target = $1 AND e.action = 'pause'
                      ORDER BY e.entry_id DESC LIMIT 1) AS a ON p.paused
  LEFT JOIN LATERAL (SELECT r.host, r.alive_until FROM outbox.relay r
                      WHERE $1 = ANY (r.task_types) AND r.alive_until <= clock_timestamp()
                      ORDER BY r.alive_until DESC LIMIT 1) AS l ON true`

const aheadSQL = `/* outbox: how many tasks are before another one */
SELECT (SELECT count(*) FROM (
          SELECT FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = $1
             AND (t.priority, t.attempt, t.task_id) < ($2::smallint, $3::smallint, $4::bigint)
           ORDER BY t.priority, t.attempt, t.task_id LIMIT $5) AS before),
       (SELECT t.run_at FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = $1
         ORDER BY t.run_at, t.task_id LIMIT 1)`

const waitsForSQL = `/* outbox: what a waiting task waits for */
SELECT COALESCE(w.grouped, false), COALESCE(to_json(w.holders)::text, '[]'), COALESCE(w.ahead, 0)
  FROM outbox.waits_for($1) AS w`

// Why says why a task does not run: each cause that holds, with the command or the setting that changes
// it. Of a task that runs, is finished, dead or gone it says that. It costs a bounded number of reads by
// an index, with any backlog. It sees what is in the database: a handler that a relay has registered, but
// not what a relay's own callbacks (WorkersByType) decide, nor the rights of another role. In a
// transaction that may not read all of it, the cause is CauseUnknown, and the transaction is to be rolled
// back.
func (c *Client) Why(ctx context.Context, taskID int64) (Why, error) {
	w := whyOf{task: Task{ID: taskID}}
	var err error
	if w.task, err = c.Task(ctx, taskID); errors.Is(err, ErrNotFound) {
		w.task = Task{ID: taskID}
	} else if err != nil {
		return Why{}, err
	}
	relays, err := c.Relays(ctx)
	if err != nil {
		return Why{}, err
	}
	w.relays = slices.DeleteFunc(relays, func(r Relay) bool { return !r.Alive })
	for _, r := range w.relays {
		if slices.Contains(r.Types, w.task.Type) {
			w.handling = append(w.handling, r)
		}
	}
	if w.origin, err = c.Origin(ctx); err != nil {
		return Why{}, err
	}
	err = c.read(func(q outbox.Querier) error { return w.read(ctx, c, q) })
	switch pgerr.Code(err) {
	case "42501", "42703", "42883": // a right, a column, a function
		return Why{taskID, w.task.State, []Cause{{Kind: CauseUnknown,
			Text:   "it is not known: the role lacks a right, or the schema is older than this program",
			Remedy: "outbox migrate, then outbox roles apply"}}}, nil
	}
	if err != nil {
		return Why{}, failed(fmt.Sprintf("say why task %d waits", taskID), err)
	}
	if len(w.holders) == 1 && !w.grouped {
		if head, err := c.Task(ctx, w.holders[0]); err == nil {
			w.holder = &head
		} else if !errors.Is(err, ErrNotFound) { // it has just ended
			return Why{}, err
		}
	}
	return Why{TaskID: taskID, State: w.task.State, Causes: w.causes()}, nil
}

func (w *whyOf) read(ctx context.Context, c *Client, q outbox.Querier) error {
	var now int64
	var pausedAt, rateUntil, lastSeen sql.NullTime
	var perRelay, holders string
	err := q.QueryRowContext(ctx, c.schema.SQL(whySQL), w.task.Type).Scan(&now, &w.paused, &w.pausedBy, &pausedAt,
		&w.maxRunning, &rateUntil, &w.lastHost, &lastSeen, &perRelay, &w.hidden, &w.secured, &w.everGiven)
	if err != nil {
		return err
	}
	w.now, w.pausedAt, w.rateUntil, w.lastSeen = time.UnixMicro(now), pausedAt.Time, rateUntil.Time, lastSeen.Time
	switch w.task.State {
	case StateReady:
		var oldest sql.NullTime
		err = q.QueryRowContext(ctx, c.schema.SQL(aheadSQL), w.task.Type, w.task.Priority, w.task.Attempt, w.task.ID,
			mostAhead).Scan(&w.ahead, &oldest)
		w.oldest = oldest.Time
	case StateWaiting:
		err = q.QueryRowContext(ctx, c.schema.SQL(waitsForSQL), w.task.ID).Scan(&w.grouped, &holders, &w.waitingAhead)
		if err == nil {
			err = json.Unmarshal([]byte(holders), &w.holders)
		}
	}
	return errors.Join(err, json.Unmarshal([]byte(perRelay), &w.perRelay))
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
			Remedy: fmt.Sprintf("mend the cause of its last error, then: outbox dead redrive -ids %d", t.ID)}}
	}
	if ran := w.running(); ran != nil {
		return []Cause{*ran}
	}
	var all []Cause
	for _, of := range []func() *Cause{w.noDatabase, w.noRelay, w.pause, w.time, w.key, w.typeLimit, w.rate,
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
	c := Cause{Kind: CauseGone, Text: "no task has this id: it has finished and is not kept, was canceled or purged, or its " +
		"transaction has not committed", Remedy: "handlers.Retention keeps finished tasks; outbox audit -task ID has what was done by hand"}
	switch {
	case w.hidden:
		return Cause{Kind: CauseRowSecurity, Text: "row level security hides tasks from this role, perhaps this one",
			Remedy: "a policy for the role, or ALTER ROLE … BYPASSRLS; relays need it as well"}
	case w.task.ID > w.everGiven:
		c.Text = "no task has had this id yet"
		c.Remedy = ""
	}
	return c
}

// running is the run that is under way, or was lost.
func (w *whyOf) running() *Cause {
	for _, r := range w.task.Runs {
		if !r.Lost {
			return &Cause{Kind: CauseRunning, Text: fmt.Sprintf("it runs, since %s in relay %s", stamp(r.StartedAt), r.RelayID)}
		}
	}
	if w.task.State != StateLeased {
		return nil
	}
	return &Cause{Kind: CauseLost, Text: "its relay died while it ran it, or its lease has run out: another relay takes it over",
		Remedy: "it takes 10 to 15 s; a relay has to be alive for that"}
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
	case w.origin.Refused != "" && len(w.relays) == 0: // noDatabase says that
		return nil
	case len(w.relays) == 0:
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
	return &Cause{Kind: CausePaused, Text: "its type is paused" + by, Remedy: "outbox resume " + w.task.Type}
}

// time is what a scheduled task waits for.
func (w *whyOf) time() *Cause {
	t := w.task
	now := fmt.Sprintf("outbox tasks run-now %d", t.ID)
	last := ""
	if n := len(t.Timeline); n > 0 {
		last = string(t.Timeline[n-1].Kind)
	}
	switch {
	case t.State != StateScheduled && t.State != StateRetrying || !t.RunAt.After(w.now):
		return nil
	case strings.HasPrefix(t.LastError, "relay: the task cannot be read"):
		return &Cause{Kind: CauseUnreadable, Text: "PostgreSQL cannot read its row: " + t.LastError, Until: t.RunAt,
			Remedy: "restore the row, or cancel the task: outbox tasks cancel " + fmt.Sprint(t.ID)}
	case last == timeline.Throttled:
		return &Cause{Kind: CauseThrottled, Text: "the other side asked to wait: " + t.LastError, Until: t.RunAt, Remedy: now}
	case t.State == StateRetrying:
		return &Cause{Kind: CauseRetrying, Text: fmt.Sprintf("attempt %d failed: %s", t.Attempt, t.LastError), Until: t.RunAt, Remedy: now}
	}
	return &Cause{Kind: CauseScheduled, Text: "it is scheduled", Until: t.RunAt, Remedy: now}
}

// key is what a waiting task waits for.
func (w *whyOf) key() *Cause {
	if w.task.State != StateWaiting || len(w.holders) == 0 {
		return nil
	}
	before := ""
	if w.waitingAhead > 0 {
		before = fmt.Sprintf(", and %s wait before it", atLeast(w.waitingAhead))
	}
	if w.grouped {
		return &Cause{Kind: CauseGroup, Tasks: w.holders, Text: fmt.Sprintf("the %d places of its group key are taken by %s",
			len(w.holders), taskNames(w.holders)) + before, Remedy: "handlers.MaxRunningPerKey allows more; a shorter timeout frees places sooner"}
	}
	c := &Cause{Kind: CauseOrdered, Tasks: w.holders, Text: "it is behind " + taskNames(w.holders) + " of its ordering key" + before,
		Remedy: fmt.Sprintf("outbox tasks show %d says why that one waits; to let the key go on: outbox tasks cancel %[1]d", w.holders[0])}
	if h := w.holder; h != nil {
		c.Text = fmt.Sprintf("it is behind task %d of its ordering key, which is %s%s", h.ID, h.State, before)
		if h.RunAt.After(w.now) {
			c.Until = h.RunAt
		}
	}
	return c
}

// calls are the runs of a type in relays. A batch is one.
func calls(relays []Relay, taskType string) (n int) {
	for _, r := range relays {
		for _, run := range r.Runs {
			if run.Type == taskType && !run.Lost {
				n++
			}
		}
	}
	return n
}

func (w *whyOf) typeLimit() *Cause {
	if n := calls(w.relays, w.task.Type); w.maxRunning > 0 && n >= w.maxRunning {
		return &Cause{Kind: CauseTypeLimit, Text: fmt.Sprintf("%d tasks of its type run, as many as may in all relays", n),
			Remedy: "handlers.MaxRunning allows more"}
	}
	return nil
}

func (w *whyOf) rate() *Cause {
	if w.rateUntil.IsZero() {
		return nil
	}
	return &Cause{Kind: CauseRate, Text: "the rate of its type is used up", Until: w.rateUntil, Remedy: "handlers.Rate allows more"}
}

// noWorker says that no relay with a handler can run it now, and why.
func (w *whyOf) noWorker() *Cause {
	var full, limited []string
	for _, r := range w.handling {
		n, limit := calls([]Relay{r}, w.task.Type), w.perRelay[r.ID]
		switch {
		case limit > 0 && n >= limit:
			limited = append(limited, fmt.Sprintf("%d in %s", n, r.Host))
		case r.Workers > 0 && live(r) >= r.Workers:
			full = append(full, fmt.Sprintf("%d of %s (%s)", r.Workers, r.Host, busyWith(r)))
		default:
			return nil
		}
	}
	switch {
	case len(full) > 0:
		return &Cause{Kind: CauseWorkers, Text: "all workers are busy: " + strings.Join(append(full, limited...), ", "),
			Remedy: "relay.Config.Workers, more relays, or handlers.MaxRunningPerRelay for the types that are busy"}
	case len(limited) > 0:
		return &Cause{Kind: CauseRelayLimit, Text: "each relay runs as many tasks of its type as it may: " + strings.Join(limited, ", "),
			Remedy: "handlers.MaxRunningPerRelay allows more"}
	}
	return nil
}

// live is how many runs of a relay are under way.
func live(r Relay) (n int) {
	for _, run := range r.Runs {
		if !run.Lost {
			n++
		}
	}
	return n
}

// busyWith is how many runs of a relay are of which type, the most first.
func busyWith(r Relay) string {
	of := map[string]int{}
	for _, run := range r.Runs {
		of[run.Type]++
	}
	var types []string
	for name := range of {
		types = append(types, name)
	}
	slices.SortFunc(types, func(a, b string) int { return of[b] - of[a] })
	for i, name := range types {
		types[i] = fmt.Sprintf("%d %s", of[name], name)
	}
	return strings.Join(types[:min(len(types), 5)], ", ")
}

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
	if w.task.State != StateReady || lost < 2 {
		return nil
	}
	return &Cause{Kind: CauseSuspect, Text: fmt.Sprintf("its last %d runs were lost with their processes, so it runs beside few others", lost),
		Remedy: "find in the relays' output what ended them; outbox tasks cancel " + fmt.Sprint(w.task.ID) + " removes it"}
}

// queued is the cause of a task that only has to wait its turn.
func (w *whyOf) queued() Cause {
	c := Cause{Kind: CauseQueued, Text: "a relay is about to make it ready"}
	late := w.now.Sub(w.task.RunAt)
	if w.task.State == StateReady {
		c.Text = "it is the next of its type"
		if w.ahead > 0 {
			c.Text = fmt.Sprintf("%s of its type are before it", atLeast(w.ahead))
		}
		if !w.oldest.IsZero() && w.oldest.Before(w.now) {
			late = w.now.Sub(w.oldest)
			c.Text += fmt.Sprintf("; the oldest has been due for %v", late.Round(time.Millisecond))
		}
	}
	if late > time.Minute {
		c.Remedy = "a relay has a handler and free workers: its log says what holds it up, and outbox doctor what is wrong"
		if w.secured {
			c.Remedy += "; row level security is on for outbox.task, and may hide the task from the relays' role"
		}
	}
	return c
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func atLeast(n int64) string {
	switch {
	case n >= mostAhead:
		return fmt.Sprintf("%d tasks or more", n)
	case n == 1:
		return "1 task"
	}
	return fmt.Sprintf("%d tasks", n)
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
