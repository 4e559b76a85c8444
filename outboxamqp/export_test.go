package outboxamqp

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
)

// Refused is the error of an event over which the broker closed the channel, or the connection.
func Refused(p *Publisher, code int) error {
	return p.refused(&amqp.Error{Code: code, Reason: "a test", Server: true})
}

// EndsConnection reports whether a code ends the connection over one event.
func EndsConnection(code int) bool { return endsConnection(&amqp.Error{Code: code, Server: true}) }

// Late is the result of a call whose events are sent, and of which those before settled are
// confirmed. Then its time is over.
func Late(p *Publisher, ctx context.Context, events []*forward.Event, settled int) []error {
	b := newBatch(events)
	for i := range events {
		if b.sent[i] = true; i < settled {
			b.answer(i, nil)
		}
	}
	return b.end(p.ended(ctx, "no confirm"))
}
