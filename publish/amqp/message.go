package outboxamqp

import (
	"fmt"

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
