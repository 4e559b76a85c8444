// Package outboxotel instruments the outbox with OpenTelemetry: the trace of the request that
// enqueued a task goes on in the task's handler, and the work of relays is measured.
//
//	import outboxotel "github.com/txoutbox/outbox/telemetry/otel"
//
//	tel, err := outboxotel.New(outboxotel.Config{DB: db})
//
//	// a span "send SEND_WELCOME", whose context travels with the task
//	_, err = tel.Enqueue(ctx, tx, SendWelcome.New(welcome))
//
//	// the spans "receive SEND_WELCOME" and "process SEND_WELCOME"
//	reg.Use(tel.Middleware())
//	r, err := relay.New(db, reg, relay.Config{Observers: []relay.Observer{tel.Observer()}})
//
// Names and attributes are those of the semantic conventions for messaging, version 1.30.0, which
// are under development: a task type is a destination, a task a message, and the system is
// "outbox". Names beyond the conventions begin with "outbox.".
//
// These instruments are in the conventions:
//
//   - messaging.client.operation.duration (s): how long enqueues by [Telemetry] (send) and claims
//     (receive) took
//   - messaging.client.sent.messages ({message}): tasks given to an enqueue by [Telemetry],
//     committed or not; a failed enqueue has error.type
//   - messaging.client.consumed.messages ({message}): tasks that were claimed
//   - messaging.process.duration (s): how long calls of handlers took
//
// These are not. All but those of relays have the type as messaging.destination.name. The unit is in
// brackets, with further attributes behind it:
//
//   - outbox.task.wait (s): how long tasks had been due when they were claimed
//   - outbox.task.runs ({run}; outbox.outcome): ends of runs of tasks
//   - outbox.task.dead_letters ({task}; outbox.reason): tasks that became dead letters
//   - outbox.relay.running ({relay}): relays of this process that run
//   - outbox.relay.outage ({relay}): relays of this process that cannot work until PostgreSQL is
//     back, or until their *sql.DB has a connection for them
//   - outbox.relay.refused ({relay}): relays of this process that PostgreSQL refuses a right, an object,
//     the login or the database
//
// These are of the database, by Config.DB, with the type as messaging.destination.name:
//
//   - outbox.tasks ({task}; outbox.state): tasks
//   - outbox.oldest_ready (s): how long ago the ready task that has waited longest became due
//   - outbox.tasks.finished ({task}): tasks that are done, of all relays, since the counters began
//   - outbox.runs.failed ({run}): runs that failed, of all relays, since the counters began
//
// Spans of an enqueue of one task have outbox.outcome. Those of claims and handlers have
// outbox.kind, and of one task outbox.attempt and outbox.max_attempts. If the handler returned an
// error, its span has outbox.result, or for a handlers.BatchResult the number of
// outbox.failed_tasks.
//
// Where a task is enqueued without a span of its own, [Telemetry.TraceContext] is an option for
// Enqueue, and enough for the handler's spans.
//
// The package is a module of its own, so that apps without it do not depend on OpenTelemetry.
package outboxotel

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/schemaname"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.30.0"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/txoutbox/outbox/telemetry/otel"

// Config says where spans and metrics go. It is copied by New; the zero value of a field is its
// default.
type Config struct {
	// TracerProvider makes the spans. Default the global one of package otel.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Default the global one of package otel.
	MeterProvider metric.MeterProvider

	// Propagator writes the trace context into the headers of tasks, and reads it there. Default
	// propagation.TraceContext, and not the global one: baggage would lie in the database, and
	// there are at most 4 kB of headers. Of more than 2 kB only traceparent is written.
	Propagator propagation.TextMapPropagator

	// NewRoot gives the spans of each handler's call a trace of their own, with a link to that of the
	// enqueuer. By default those of a Tx or Leased handler are children of the enqueuer's span, and
	// linked as well; those of a Batch handler always only have links, one for each task that
	// brought a context.
	NewRoot bool

	// HideErrors keeps the text of handlers' errors out of spans; their type stays. By default it
	// is recorded, up to 4 kB, as it is in the column last_error and the log. A payload is there
	// only if the handler has put it into its error.
	HideErrors bool

	// DB, if set, is read at each collection of metrics for the gauges and counters of
	// outbox.Stats, with one statement. Set it in one process of an app only, or in any number
	// where the backend keeps them apart. Its role is a viewer's
	// (https://github.com/txoutbox/outbox/blob/main/docs/security.md).
	DB *sql.DB
	// Schema is the PostgreSQL schema of the outbox. Default "outbox".
	Schema string
	// Timeout bounds that read. Default 5 s.
	Timeout time.Duration
}

// Telemetry makes spans and metrics. Its methods are safe for concurrent use.
type Telemetry struct {
	config Config
	tracer trace.Tracer
	instruments
}

// New returns a Telemetry, without connecting. The error names each invalid field of config, or is
// the MeterProvider's.
func New(config Config) (*Telemetry, error) {
	if config.TracerProvider == nil {
		config.TracerProvider = otel.GetTracerProvider()
	}
	if config.MeterProvider == nil {
		config.MeterProvider = otel.GetMeterProvider()
	}
	if config.Propagator == nil {
		config.Propagator = propagation.TraceContext{}
	}
	config.Schema = cmp.Or(config.Schema, schemaname.Default)
	config.Timeout = cmp.Or(config.Timeout, 5*time.Second)
	var errs []error
	if !schemaname.Valid(config.Schema) {
		errs = append(errs, fmt.Errorf("outboxotel: Config.Schema: %q: %s", config.Schema, schemaname.Rule))
	}
	if config.Timeout < 0 {
		errs = append(errs, fmt.Errorf("outboxotel: Config.Timeout: %v: must not be negative; 0 is 5s", config.Timeout))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	t := &Telemetry{config: config, tracer: config.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	if err := t.makeInstruments(config.MeterProvider.Meter(scope,
		metric.WithSchemaURL(semconv.SchemaURL))); err != nil {
		return nil, fmt.Errorf("outboxotel: %w", err)
	}
	return t, nil
}

// Close ends the reading of Config.DB, and leaves the pool open. Spans and other metrics go on.
func (t *Telemetry) Close() error {
	if t.registration == nil {
		return nil
	}
	return t.registration.Unregister()
}

var system = semconv.MessagingSystemKey.String("outbox")

// The names of operations are their types.
var (
	opSend    = []attribute.KeyValue{system, semconv.MessagingOperationName("send"), semconv.MessagingOperationTypeSend}
	opReceive = []attribute.KeyValue{system, semconv.MessagingOperationName("receive"),
		semconv.MessagingOperationTypeReceive}
	opProcess = []attribute.KeyValue{system, semconv.MessagingOperationName("process"),
		semconv.MessagingOperationTypeProcess}
)

func with(operation []attribute.KeyValue, more ...attribute.KeyValue) []attribute.KeyValue {
	return append(operation[:len(operation):len(operation)], more...)
}
