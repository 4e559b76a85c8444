package outboxnats

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
)

// classify says what an error of the client means for the event; nil is nil.
func (p *Publisher) classify(ctx context.Context, e *forward.Event, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("outboxnats: event %s to %s: %w", e.ID, e.To, err)
	var refused *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return forward.Permanent(fmt.Errorf("%w: %d bytes with headers, the server takes %d", wrapped, len(e.Data), p.js.Conn().MaxPayload()))
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return p.withoutStream(ctx, e, wrapped)
	case errors.As(err, &refused):
		if refused.Code >= 500 { // no leader, no memory, full, or the disk is
			return forward.Unavailable(wrapped, 0)
		}
		return forward.Permanent(wrapped)
	}
	// What is left is of the connection: closed, disconnected, timed out, too much in flight.
	return forward.Unavailable(wrapped, 0)
}

// withoutStream tells a subject that no stream takes from a JetStream that is not ready.
func (p *Publisher) withoutStream(ctx context.Context, e *forward.Event, err error) error {
	_, found := p.js.StreamNameBySubject(ctx, e.To)
	if errors.Is(found, jetstream.ErrStreamNotFound) {
		return forward.Permanent(fmt.Errorf("%w: no stream takes the subject", err))
	}
	return forward.Unavailable(err, 0)
}
