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
