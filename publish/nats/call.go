package outboxnats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
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

// maxSubject leaves room for the reply's subject and the sizes in a line of 4,096 bytes, the
// server's default: it closes the connection of a longer one.
const maxSubject = 3840

// messageID is the Nats-Msg-Id of an event. A stream may have the event of several targets.
func messageID(e *forward.Event) string {
	if e.Target == "" {
		return e.ID
	}
	return e.ID + "/" + e.Target
}

// message is an event's, or an error that is forward.Permanent.
func message(e *forward.Event) (*nats.Msg, error) {
	refuse := func(format string, args ...any) (*nats.Msg, error) {
		return nil, forward.Permanent(fmt.Errorf("outboxnats: event %s: %s", e.ID, fmt.Sprintf(format, args...)))
	}
	if len(e.To) > maxSubject {
		return refuse("the subject %.40q… has %d bytes, at most %d", e.To, len(e.To), maxSubject)
	}
	if !isSubject(e.To) {
		return refuse("%q is no subject: words between dots, without spaces, control characters, * and >", e.To)
	}
	m := nats.NewMsg(e.To)
	m.Data = e.Data
	m.Header.Set("Content-Type", forward.ContentType)
	for _, h := range e.CloudEvents("ce-") {
		if strings.HasPrefix(strings.ToLower(h.Name), "nats-") { // those steer JetStream
			continue
		}
		if !isToken(h.Name) {
			return refuse("%.40q is no name of a header: letters, digits and !#$%%&'*+-.^_`|~", h.Name)
		}
		if strings.ContainsAny(h.Value, "\r\n") {
			return refuse("the value of the header %s has a line break", h.Name)
		}
		m.Header[h.Name] = []string{h.Value}
	}
	if strings.ContainsAny(messageID(e), "\r\n") {
		return refuse("the message ID has a line break")
	}
	return m, nil
}

// isSubject reports whether a message can be published to the subject.
func isSubject(s string) bool {
	for word := range strings.SplitSeq(s, ".") {
		if word == "" {
			return false
		}
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == '>' })
}

// isToken reports whether s is a token, as a header's name must be.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
			strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// connectionErrors are all that is forward.Unavailable, beside errors of the network and a
// JetStream that is not there.
var connectionErrors = []error{
	nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrConnectionReconnecting, nats.ErrDisconnected,
	nats.ErrInvalidConnection, nats.ErrNoServers, nats.ErrStaleConnection, nats.ErrReconnectBufExceeded,
	nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	nats.ErrMaxConnectionsExceeded, nats.ErrMaxAccountConnectionsExceeded,
	jetstream.ErrConnectionClosed, jetstream.ErrServerShutdown, jetstream.ErrJetStreamPublisherClosed,
	jetstream.ErrTooManyStalledMsgs, context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF,
}

// Codes of JetStream that package jetstream has no names for, in the version of go.mod.
const (
	messageTooLarge = 10054
	accountLimit    = 10002 // resource limits of the account
	headersTooLong  = 10097
	storeFailed     = 10077 // a stream or a subject is at a limit, or the store failed
	sealed          = 10109
	tooManyInQueue  = 10167
)

// classify marks an error of the client by its fault; nil is nil. An error in no list is the
// event's.
func (c *call) classify(ctx context.Context, e *forward.Event, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("outboxnats: event %s to %s: %w", e.ID, e.To, err)
	var refused *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return forward.Permanent(fmt.Errorf("%w: %d bytes with headers, the server takes %d", wrapped, len(e.Data),
			c.l.js.Conn().MaxPayload()))
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, jetstream.ErrInvalidSubject),
		errors.Is(err, nats.ErrBadHeaderMsg):
		return forward.Permanent(wrapped)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return c.noResponders(ctx, e, wrapped)
	case errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, jetstream.ErrAsyncPublishTimeout),
		errors.Is(err, nats.ErrTimeout):
		return forward.TargetUnavailable(wrapped, 0)
	case errors.As(err, &refused):
		return byCode(refused, wrapped)
	case isConnectionError(err):
		return forward.Unavailable(wrapped, 0)
	}
	return wrapped
}

func isConnectionError(err error) bool {
	var network net.Error
	return errors.As(err, &network) || publisher.IsAny(err, connectionErrors)
}

// byCode marks an answer of JetStream by its fault.
func byCode(refused *jetstream.APIError, err error) error {
	switch refused.ErrorCode {
	case messageTooLarge, headersTooLong:
		return forward.Permanent(err)
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return forward.Unavailable(err, 0)
	case storeFailed:
		if strings.Contains(refused.Description, "message too large") {
			return forward.Permanent(err)
		}
		return forward.TargetUnavailable(err, 0)
	case accountLimit, sealed, tooManyInQueue:
		return forward.TargetUnavailable(err, 0)
	}
	if refused.Code >= 500 { // no leader, no memory, no disk
		return forward.TargetUnavailable(err, 0)
	}
	return err
}

// lookup is for how long noResponders asks.
const lookup = 2 * time.Second

// noResponders tells a subject that no stream takes from a JetStream that is not there. It asks
// once for each subject, and no more after a question without an answer.
func (c *call) noResponders(ctx context.Context, e *forward.Event, err error) error {
	found, asked := c.withoutStream[e.To]
	if !asked && c.noLookup == nil {
		limit, cancel := context.WithTimeout(ctx, lookup)
		defer cancel()
		if _, found = c.l.js.StreamNameBySubject(limit, e.To); c.withoutStream == nil {
			c.withoutStream = map[string]error{}
		}
		c.withoutStream[e.To] = found
		if found != nil && !errors.Is(found, jetstream.ErrStreamNotFound) {
			c.noLookup = found
		}
	}
	switch {
	case errors.Is(found, jetstream.ErrStreamNotFound):
		err = fmt.Errorf("%w: no stream takes the subject", err)
	case errors.Is(c.noLookup, nats.ErrNoResponders), errors.Is(c.noLookup, jetstream.ErrJetStreamNotEnabled),
		errors.Is(c.noLookup, jetstream.ErrJetStreamNotEnabledForAccount):
		return forward.Unavailable(fmt.Errorf("%w: JetStream is not there: %w", err, c.noLookup), 0)
	}
	return forward.TargetUnavailable(err, 0)
}
