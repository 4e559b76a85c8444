package forward

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/copied"
)

// Event is a task as a broker gets it. ID, Source, Type, Subject and Time are attributes of
// CloudEvents 1.0; OrderingKey is its extension partitionkey.
type Event struct {
	// ID is the key of the task that was enqueued ([outbox.Task.Key]), a UUID: the same in every
	// attempt and for every target. No other event has it, from any Source.
	ID string
	// Source and Type are by default the database's and the task's: see the options of their names.
	Source string
	Type   string
	// Subject is the subject of the event; "" for none.
	Subject string
	// OrderingKey is the task's: brokers partition by it. "" for none.
	OrderingKey string
	// Time is when the transaction that enqueued the task began.
	Time time.Time
	// Headers are the task's, such as its trace context.
	Headers map[string]string
	// Data is the payload as JSON, as PostgreSQL prints jsonb.
	Data []byte

	// Target is the name of the target in [Fanout]; "" for Register.
	Target string
	// To is where the event goes: a topic, a subject, a routing key or a URL.
	To string
	// Attempt is the number of the attempt, from 1.
	Attempt int
}

// ContentType is the content type of the data of an [Event].
const ContentType = "application/json"

// Header is one header of a message.
type Header struct{ Name, Value string }

// CloudEvents returns the attributes with the given prefix before each name, as the protocol's
// binding of CloudEvents asks, such as "ce_" for Kafka.
// The content type is not among them, as it has a place of its own. The task's headers follow by
// their names, without a Content-Type and those that begin with the prefix.
func (e *Event) CloudEvents(prefix string) []Header {
	all := []Header{
		{prefix + "specversion", "1.0"}, {prefix + "id", e.ID}, {prefix + "source", e.Source},
		{prefix + "type", e.Type}, {prefix + "time", e.Time.UTC().Format(time.RFC3339Nano)},
	}
	if e.Subject != "" {
		all = append(all, Header{prefix + "subject", e.Subject})
	}
	if e.OrderingKey != "" {
		all = append(all, Header{prefix + "partitionkey", e.OrderingKey})
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		lower := strings.ToLower(name)
		if lower != "content-type" && !strings.HasPrefix(lower, strings.ToLower(prefix)) {
			all = append(all, Header{name, e.Headers[name]})
		}
	}
	return all
}

// newEvent is the event of a task.
func (c *config) newEvent(ctx context.Context, t *outbox.Task[json.RawMessage]) (*Event, error) {
	e := &Event{
		ID: t.Key(), Source: c.source, Type: c.eventType, OrderingKey: t.OrderingKey, Time: t.CreatedAt,
		Data: t.Payload, Target: c.target, Attempt: t.Attempt,
	}
	if e.Source == "" {
		e.Source = "urn:uuid:" + t.DatabaseID
	}
	if c.target != "" {
		e.setOrigin(*t)
	}
	e.Headers = withoutControl(t.Headers)
	var err error
	if c.subject != nil {
		e.Subject, err = c.subject(ctx, e)
	}
	if err == nil {
		e.To, err = c.route(ctx, e)
	}
	return e, err
}

// setOrigin gives the event of a copy the key and the time of the task that [Fanout] has copied.
// Its headers are as Fanout writes them, or the copy is a task of its own.
func (e *Event) setOrigin(task outbox.Task[json.RawMessage]) {
	id, err := strconv.ParseInt(task.Headers[copied.EventID], 10, 64)
	at, badTime := time.Parse(time.RFC3339Nano, task.Headers[copied.EventTime])
	if err == nil && badTime == nil && id > 0 {
		task.ID = id
		e.ID, e.Time = task.Key(), at
	}
}

// withoutControl are the headers without those of the library, which SQL may have stored.
func withoutControl(headers map[string]string) map[string]string {
	isControl := func(name, _ string) bool {
		return strings.EqualFold(name, copied.EventID) || strings.EqualFold(name, copied.EventTime)
	}
	for name := range headers {
		if isControl(name, "") {
			headers = maps.Clone(headers)
			maps.DeleteFunc(headers, isControl)
			break
		}
	}
	return headers
}

// Publisher sends events to a broker. It is safe for concurrent use.
type Publisher interface {
	// Publish sends events and waits until the broker has acknowledged or refused each. It returns
	// nil if all are acknowledged; else an error or nil for each, in their order. It keeps the order
	// of the events of one OrderingKey, and ends soon after ctx. It changes no event, and keeps none
	// after it returned. An error may be one of handlers.Snooze or handlers.RetryAfter: a wait of
	// more than three days is cut.
	Publish(ctx context.Context, events []*Event) []error
}

// marked is an error with the mark of a fault.
type marked[fault any] struct {
	error
	after time.Duration // when to try again
}

func (m marked[fault]) Unwrap() error { return m.error }

type (
	ofEvent  struct{} // for good
	ofBroker struct{}
	ofTarget struct{}
)

func mark[fault any](err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return marked[fault]{err, max(after, 0)}
}

func isMarked[fault any](err error) (after time.Duration, yes bool) {
	var m marked[fault]
	yes = errors.As(err, &m)
	return m.after, yes
}

// Permanent marks an error of a Publisher that no retry can mend, as with too large a message or an
// invalid name: the event becomes a dead letter at once. A nil err gives nil.
func Permanent(err error) error { return mark[ofEvent](err, 0) }

// IsPermanent reports whether err, or an error in its chain, is marked by [Permanent].
func IsPermanent(err error) bool {
	_, yes := isMarked[ofEvent](err)
	return yes
}

// Unavailable marks an error of a Publisher as the broker's: there is no connection to it at all.
// No attempt is counted, and the Forwarder sends nothing for a while if nothing passed. Mark known
// connection errors only: an unknown error may be the message's. after is how long to wait, at most
// an hour; 0 or less leaves that to the circuit, which waits a second, then two, at most a minute.
// A nil err gives nil.
func Unavailable(err error, after time.Duration) error { return mark[ofBroker](err, after) }

// IsUnavailable reports whether err, or an error in its chain, is marked by [Unavailable].
// [ErrUnavailable] is not.
func IsUnavailable(err error) bool {
	_, yes := isMarked[ofBroker](err)
	return yes
}

// TargetUnavailable marks an error of a Publisher as that of the event's target ([Event.To]): it
// takes nothing now, as a full queue, a subject at its limit, or a topic without a leader. It is an
// answer, so the attempt of the event counts; but if after is positive, the target asks to wait, as
// by [handlers.RetryAfter]. If nothing passed to the target, its other events are postponed without
// an attempt, and those of other targets are sent. after is as of [Unavailable]. A nil err gives
// nil.
func TargetUnavailable(err error, after time.Duration) error { return mark[ofTarget](err, after) }

// IsTargetUnavailable reports whether err, or an error in its chain, is marked by
// [TargetUnavailable].
func IsTargetUnavailable(err error) bool {
	_, yes := isMarked[ofTarget](err)
	return yes
}
