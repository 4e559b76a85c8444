package outboxamqp

import (
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
)

const (
	prefix = "cloudEvents_" // of attributes, by CloudEvents' binding for AMQP
	// mostShort is the size of a short string of AMQP. The library ends the connection over a
	// longer one.
	mostShort = 255
	// overhead is more than the other fields of a header frame take: five short strings and some
	// numbers.
	overhead = 2048
)

// newMessage is the message of an event. The error means that AMQP has no such message: frame is
// the largest frame, 0 for no limit.
func newMessage(e *forward.Event, frame int) (amqp.Publishing, error) {
	m := amqp.Publishing{
		MessageId: e.ID, Type: e.Type, Timestamp: e.Time, ContentType: forward.ContentType,
		DeliveryMode: amqp.Persistent, Headers: amqp.Table{}, Body: e.Data,
	}
	size := overhead
	for _, h := range e.CloudEvents(prefix) {
		if err := checkShort("name of a header", h.Name); err != nil {
			return m, err
		}
		m.Headers[h.Name] = h.Value
		size += 1 + len(h.Name) + 5 + len(h.Value)
	}
	if frame > 0 && size > frame {
		return m, fmt.Errorf("outboxamqp: event %s: the headers take %d bytes: more than a frame of %d", m.MessageId,
			size, frame)
	}
	if err := checkShort("routing key", e.To); err != nil {
		return m, err
	}
	if err := checkShort("type", m.Type); err != nil {
		return m, err
	}
	return m, checkShort("id", m.MessageId)
}

func checkShort(what, s string) error {
	if len(s) > mostShort {
		return fmt.Errorf("outboxamqp: the event's %s has %d bytes: AMQP allows %d: %.40q…", what, len(s), mostShort, s)
	}
	return nil
}

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
