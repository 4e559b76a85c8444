package admin

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/tail"
)

// TailFilter says which events of tasks [Client.Tail] tells. An empty list is all. What a TailEvent tells of
// the tail itself passes any filter. It is experimental.
type TailFilter struct {
	Types  []string // names of task types
	Events []string // TailBegun, TailLost, or a text of relay.Outcome
}

// The events of a TailEvent besides the texts of relay.Outcome, such as failed and dead.
const (
	TailBegun = tail.Begun // the handler is called
	// TailLost: a run was lost with its process. A relay that takes over tells it of Leased tasks; of others
	// the relay whose claim finds it, when the task runs again or is buried.
	TailLost = tail.Lost

	TailListening    = "listening"    // the tail begins, also after TailDisconnected
	TailDisconnected = "disconnected" // until TailListening events are missing
	TailLeftOut      = "left_out"     // more happened in a relay than it sends
)

// TailEvent is what happened to a task, or to the tail. Each event has the fields that mean something for it;
// the others are zero. It is experimental.
type TailEvent struct {
	At       time.Time
	Event    string // later versions may have more
	Type     string
	Kind     outbox.Kind
	TaskID   int64
	Attempt  int
	Duration time.Duration // of the handler's call; of a batch that of all its tasks
	Reason   outbox.Reason // of a dead letter
	RelayID  string        // of the relay that tells it
	// Error is the task's last error, of failed, throttled and dead, as the row has it when the event
	// arrives; "" if a later attempt may have replaced it. Of TailDisconnected it is the reason.
	Error   string
	LeftOut int64 // of TailLeftOut: how many events
	Relays  int   // of TailListening: living relays
	Silent  int   // of TailListening: those of an older version, which tell nothing
}

const (
	tailTest  = 3 * time.Second // for the notification to itself
	tailLook  = 5 * time.Second // of each statement
	tailAgain = time.Second     // before it connects again
	tailMost  = 1000            // notifications that wait for tell; more are left out
)

// Tail calls tell for what relays do with tasks, until ctx ends or tell returns an error, which it returns.
// The end of ctx is no error. Relays tell while somebody looks: each begins with its next heartbeat, within
// 3 s, and ends within 16 s after the last tail. They send events a few times a second, outside of all
// transactions of tasks; of more than 2,000 between two sends the rest is left out. What happens to a task
// that waits, such as an Enqueue or a Cancel, is no event.
//
// dsn is a connection string for lib/pq to the Client's database, for a connection of its own with LISTEN.
// It must not lead through a pooler that lends connections for a transaction, such as PgBouncer: the first
// notification, which Tail sends to itself, does not arrive then, and Tail returns an error. It needs the
// primary, and the rights of a viewer, an operator or a worker. Until it listens it returns the first error;
// afterwards it tells TailDisconnected, connects again, and tells TailListening.
//
// tell is called by one goroutine, and should return soon. Tail reads the connection meanwhile, as PostgreSQL
// keeps all notifications of the server that one listener has not read. Events of more than 1,000 notifications
// that wait for tell are left out, as TailLeftOut says. While tell does not return for 15 s, relays stop telling.
//
// Any role of the database can send notifications, and so make up events. Tail ignores those that no relay
// would send. It is for people who look, and no record: see Client.Task for the history of a task.
//
// Tail, TailFilter and TailEvent are experimental.
func (c *Client) Tail(ctx context.Context, dsn string, f TailFilter, tell func(TailEvent) error) error {
	db, err := c.pool("Tail")
	if err != nil {
		return err
	}
	for _, e := range f.Events {
		if !slices.Contains(tail.Events(), e) {
			return invalid("TailFilter.Events: %q: use %s", e, strings.Join(tail.Events(), ", "))
		}
	}
	for _, t := range f.Types {
		if err := checkLength("TailFilter.Types", t, 1, 128); err != nil {
			return err
		}
	}
	t := &tailing{client: c, db: db, dsn: dsn, filter: f, tell: tell}
	for {
		err := t.session(ctx)
		switch {
		case t.stopped != nil:
			return t.stopped
		case ctx.Err() != nil:
			return nil
		case !t.listened:
			return failed("tail", err)
		case !t.disconnected:
			t.disconnected = true
			text := pgerr.LogText(err)
			if t.told(TailEvent{At: time.Now(), Event: TailDisconnected, Error: text}) != nil {
				return t.stopped
			}
		}
		select {
		case <-time.After(tailAgain):
		case <-ctx.Done():
			return nil
		}
	}
}

// tailing is one call of Tail.
type tailing struct {
	client *Client
	db     *sql.DB
	dsn    string
	filter TailFilter
	tell   func(TailEvent) error

	listened, disconnected bool
	stopped                error // of tell
}

func (t *tailing) told(e TailEvent) error {
	t.stopped = t.tell(e)
	return t.stopped
}

// session listens until the connection is lost, ctx ends or tell returns an error.
func (t *tailing) session(ctx context.Context) error {
	channel, id := tail.Channel(string(t.client.schema)), fmt.Sprint(time.Now().UnixNano())
	sub, err := pg.Subscribe(ctx, t.dsn, channel)
	if err != nil {
		return err
	}
	q := newTailQueue(sub)
	defer q.close()
	relays, silent, err := t.ask(ctx, channel, tail.Probe+id)
	if err != nil {
		return err
	}
	untested := time.After(tailTest)
	renew := time.NewTicker(tail.Renew)
	defer renew.Stop()
	pings := make(chan error, 1)
	for pinging := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-untested:
			return pg.ErrNoNotification
		case <-renew.C:
			if _, _, err := t.ask(ctx, channel, ""); err != nil {
				return err
			}
			if !pinging {
				pinging = true
				go func() { pings <- sub.Ping(ctx) }()
			}
		case err := <-pings:
			if pinging = false; err != nil {
				return err
			}
		case text, connected := <-q.texts:
			if n := q.leftOut.Swap(0); n > 0 && t.told(TailEvent{At: time.Now(), Event: TailLeftOut, LeftOut: n}) != nil {
				return t.stopped
			}
			switch {
			case !connected:
				return sub.Err()
			case text == tail.Probe+id:
				untested, t.listened, t.disconnected = nil, true, false
				err = t.told(TailEvent{At: time.Now(), Event: TailListening, Relays: relays, Silent: silent})
			default:
				err = t.heard(ctx, text)
			}
			if err != nil {
				return err
			}
		}
	}
}

// tailQueue reads the notifications of a subscription whatever tell does.
type tailQueue struct {
	sub     *pg.Subscription
	texts   chan string  // closed when the connection is lost
	leftOut atomic.Int64 // events for which there was no room
}

func newTailQueue(sub *pg.Subscription) *tailQueue {
	q := &tailQueue{sub: sub, texts: make(chan string, tailMost)}
	go func() {
		defer close(q.texts)
		for n := range sub.Notified {
			if n == nil {
				continue
			}
			select {
			case q.texts <- n.Extra:
			default:
				m, _ := tail.Decode(n.Extra)
				q.leftOut.Add(m.LeftOut + int64(len(m.Events)))
			}
		}
	}()
	return q
}

// close closes the subscription, and returns when its goroutine has ended.
func (q *tailQueue) close() {
	q.sub.Close()
	for range q.texts {
	}
}

const askRelaysSQL = `/* outbox: ask relays to tell what they do */
SELECT setval('outbox.tail', ceil(extract(epoch FROM clock_timestamp()))::bigint + $1), ` + pg.CommitAsync + `,
       (SELECT count(*) FROM outbox.relay WHERE alive_until > clock_timestamp()),
       (SELECT count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() AND NOT tells)`

// ask asks the relays to tell, and sends the text to itself, if there is one.
func (t *tailing) ask(ctx context.Context, channel, probe string) (relays, silent int, err error) {
	ctx, cancel := context.WithTimeout(ctx, tailLook)
	defer cancel()
	err = t.client.inTx(ctx, func(q outbox.Querier) error {
		err := q.QueryRowContext(ctx, t.client.schema.SQL(askRelaysSQL), int64(tail.Ahead.Seconds())).
			Scan(new(int64), new(string), &relays, &silent)
		if err == nil && probe != "" {
			_, err = q.ExecContext(ctx, "SELECT pg_notify($1, $2)", channel, probe)
		}
		return err
	})
	if pgerr.Code(err) == "42501" {
		err = fmt.Errorf("%w (it takes UPDATE on the sequence %s.tail, which viewers have "+
			"once the roles of this version are applied, by outbox roles apply or schema.GrantRoles)", err, t.client.schema)
	}
	return relays, silent, err
}

// heard tells the events of a notification.
func (t *tailing) heard(ctx context.Context, text string) error {
	m, ok := tail.Decode(text)
	if !ok {
		return nil
	}
	if m.LeftOut > 0 {
		e := TailEvent{At: time.Now(), Event: TailLeftOut, RelayID: m.Relay, LeftOut: m.LeftOut}
		if err := t.told(e); err != nil {
			return err
		}
	}
	var events []TailEvent
	failed := map[int64]bool{}
	for _, e := range m.Events {
		if len(t.filter.Types) > 0 && !slices.Contains(t.filter.Types, e.Type) ||
			len(t.filter.Events) > 0 && !slices.Contains(t.filter.Events, e.Name) {
			continue
		}
		if hasError(e.Name) {
			failed[e.TaskID] = true
		}
		events = append(events, TailEvent{At: time.UnixMicro(e.At), Event: e.Name, Type: e.Type,
			Kind: outbox.Kind(e.Kind), TaskID: e.TaskID, Attempt: e.Attempt,
			Duration: time.Duration(e.Took) * time.Microsecond, Reason: outbox.Reason(e.Reason), RelayID: m.Relay})
	}
	last := t.lastErrors(ctx, failed)
	for _, e := range events {
		if one, known := last[e.TaskID]; known && hasError(e.Event) && one.attempt <= e.Attempt {
			e.Error = one.text
		}
		if err := t.told(e); err != nil {
			return err
		}
	}
	return nil
}

// hasError reports whether a task's row has the error of an event.
func hasError(event string) bool {
	return slices.Contains([]string{"failed", "throttled", "dead"}, event)
}

// lastError is that of a task, and the attempt that the row has.
type lastError struct {
	attempt int
	text    string
}

const lastErrorsSQL = `/* outbox: inspect last errors of tasks */
SELECT task_id, attempt, last_error FROM outbox.task WHERE task_id = ANY ($1::bigint[]) AND last_error IS NOT NULL
UNION ALL
SELECT task_id, attempt, last_error FROM outbox.dead_task WHERE task_id = ANY ($1::bigint[]) AND last_error IS NOT NULL`

// lastErrors reads errors for people who look: without an answer the events are told without them.
func (t *tailing) lastErrors(ctx context.Context, of map[int64]bool) map[int64]lastError {
	if len(of) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tailLook)
	defer cancel()
	type row struct {
		id   int64
		last lastError
	}
	ids := pq.Array(slices.Collect(maps.Keys(of)))
	found, _ := rows(ctx, t.db, t.client.schema.SQL(lastErrorsSQL), []any{ids}, func(s scanner, r *row) error {
		return s.Scan(&r.id, &r.last.attempt, &r.last.text)
	})
	out := map[int64]lastError{}
	for _, r := range found {
		out[r.id] = r.last
	}
	return out
}
