package outboxamqp

import amqp "github.com/rabbitmq/amqp091-go"

// Refused is the error of an event over which the broker closed the channel, or the connection.
func Refused(p *Publisher, code int) error {
	return p.refused(&amqp.Error{Code: code, Reason: "a test", Server: true})
}

// EndsConnection reports whether a code ends the connection over one event.
func EndsConnection(code int) bool { return endsConnection(&amqp.Error{Code: code, Server: true}) }
