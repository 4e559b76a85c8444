package outboxnats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
)

// call is one call of Publish.
type call struct {
	p     *Publisher
	l     *link
	began time.Time
	acks  []jetstream.PubAckFuture

	errs []error

	withoutStream map[string]error // by subject: why it has none
	noLookup      error            // why JetStream does not say
}

// send sends the events. Those that are not sent have an error.
func (c *call) send(ctx context.Context, events []*forward.Event) {
	c.acks = make([]jetstream.PubAckFuture, len(events))
	var stalled error // of the client, which waits for each message that has no room
	for i, e := range events {
		m, err := message(e)
		if err != nil {
			c.errs[i] = err
			continue
		}
		if stalled == nil {
			stalled = ctx.Err()
		}
		if stalled == nil {
			c.l.sends(e.To)
			c.acks[i], err = c.l.js.PublishMsgAsync(m, jetstream.WithMsgID(messageID(e)))
			if errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				stalled = err
			}
		} else {
			err = stalled
		}
		c.errs[i] = c.classify(ctx, e, err)
	}
}

// wait waits for the acknowledgement of an event.
func (c *call) wait(ctx context.Context, e *forward.Event, ack jetstream.PubAckFuture) error {
	select {
	case known := <-ack.Ok():
		return c.known(ctx, e, known)
	default: // ctx may have ended as well
	}
	for {
		changed, refused := c.l.refusedSince(e.To, c.began)
		if refused != nil {
			return c.classify(ctx, e, refused)
		}
		select {
		case known := <-ack.Ok():
			return c.known(ctx, e, known)
		case err := <-ack.Err():
			return c.classify(ctx, e, err)
		case <-changed:
		case <-c.l.closed:
			return c.classify(ctx, e, c.closedBy(e))
		case <-ctx.Done():
			return forward.Unavailable(fmt.Errorf("outboxnats: event %s: no acknowledgement: %w", e.ID, ctx.Err()), 0)
		}
	}
}

// closedBy is why the connection is closed. The server closes that of too long a subject, where its
// limit is lower than maxSubject: the longest of all calls is at fault.
func (c *call) closedBy(e *forward.Event) error {
	last := c.l.js.Conn().LastError()
	if last != nil && strings.Contains(strings.ToLower(last.Error()), "maximum control line") &&
		len(e.To) == c.l.longestSubject() {
		return fmt.Errorf("the subject has %d bytes: %w", len(e.To), last)
	}
	return nats.ErrConnectionClosed
}

// known looks at the message that the stream had already. It is the same event, or another event
// with its message ID, as from a copy of the database. The other event would be lost.
func (c *call) known(ctx context.Context, e *forward.Event, ack *jetstream.PubAck) error {
	if !ack.Duplicate {
		return nil
	}
	if c.isAnother(ctx, e, ack) {
		return fmt.Errorf("outboxnats: event %s to %s: stream %s has another event with the message ID %s, at "+
			"sequence %d: does a copy of the database publish, or was it restored? \"outbox adopt\" gives it "+
			"other keys",
			e.ID, e.To, ack.Stream, messageID(e), ack.Sequence)
	}
	c.p.duplicates.Add(1)
	c.p.told.Do(func() {
		c.p.log.Info("outboxnats: a stream had an event already, as after a lost acknowledgement; Duplicates "+
			"counts them",
			"event", messageID(e), "stream", ack.Stream, "sequence", ack.Sequence)
	})
	return nil
}

// isAnother reports whether the stream's message is another event than e. It is not where the
// message is gone, or where the login may not read it: then there is no answer, and it asks no
// more.
func (c *call) isAnother(ctx context.Context, e *forward.Event, ack *jetstream.PubAck) bool {
	if c.l.mayNotRead.Load() {
		return false
	}
	limit, cancel := context.WithTimeout(ctx, lookup)
	defer cancel()
	stored, err := getMsg(limit, c.l.js, ack)
	if limit.Err() != nil && ctx.Err() == nil {
		c.l.mayNotRead.Store(true)
	}
	if err != nil || stored.Header.Get(nats.MsgIdHdr) != messageID(e) {
		return false
	}
	mine, err := message(e)
	if err != nil {
		return false
	}
	for _, name := range []string{"ce-id", "ce-source", "ce-type", "ce-time"} {
		if get(stored.Header, name) != get(mine.Header, name) {
			return true
		}
	}
	return false
}

func getMsg(ctx context.Context, js jetstream.JetStream, ack *jetstream.PubAck) (*jetstream.RawStreamMsg, error) {
	stream, err := js.Stream(ctx, ack.Stream)
	if err != nil {
		return nil, err
	}
	return stream.GetMsg(ctx, ack.Sequence)
}

func get(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}
