package outboxamqp

import (
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
)

var (
	// never are codes of channels that are closed over an event that no retry makes good: it is larger
	// than max_message_size, or has a header CC or BCC.
	never = []int{amqp.ContentTooLarge, amqp.PreconditionFailed}
	// ofExchange are those over an exchange, or a right to write to it.
	ofExchange = []int{amqp.NotFound, amqp.AccessRefused, amqp.ResourceLocked}
	// ofConnection are those that end the connection, with all that is in flight on it, over one event.
	// Any other end of the connection is no event's.
	ofConnection = []int{amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.UnexpectedFrame,
		amqp.NotImplemented, amqp.InternalError}
)

func endsConnection(fault *amqp.Error) bool {
	return fault != nil && fault.Server && slices.Contains(ofConnection, fault.Code)
}

// refused is the error of an event over which the broker closed the channel or the connection.
func (p *Publisher) refused(fault *amqp.Error) error {
	if fault == nil {
		return fmt.Errorf("outboxamqp: the broker closed the channel of exchange %q", p.config.Exchange)
	}
	err := fmt.Errorf("outboxamqp: publish to exchange %q: %w", p.config.Exchange, fault)
	switch {
	case slices.Contains(never, fault.Code):
		return forward.Permanent(err)
	case slices.Contains(ofExchange, fault.Code):
		return forward.TargetUnavailable(err, 0)
	}
	return err
}

func (p *Publisher) unroutable(to string) error {
	return forward.TargetUnavailable(fmt.Errorf("outboxamqp: unroutable: no queue of exchange %q is bound for the "+
		"routing key %q",
		p.config.Exchange, to), 0)
}

func (p *Publisher) nacked(to string) error {
	return forward.TargetUnavailable(fmt.Errorf("outboxamqp: a queue of exchange %q for the routing key %q is full "+
		"or failed: basic.nack",
		p.config.Exchange, to), 0)
}
