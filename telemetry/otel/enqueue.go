package outboxotel

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.30.0"
	"go.opentelemetry.io/otel/trace"
)

// maxContext is how large the trace context may be in a task's headers; more of it than traceparent
// is left out then.
const maxContext = 2 << 10

// TraceContext adds ctx's trace context to the headers of a task, beside those of options before
// it. Put it after an outbox.Headers, which would replace it. Without a span in ctx it adds
// nothing.
func (t *Telemetry) TraceContext(ctx context.Context) outbox.Option {
	carrier := propagation.MapCarrier{}
	t.config.Propagator.Inject(ctx, carrier)
	size := 0
	for k, v := range carrier {
		size += len(k) + len(v)
		if !storable(k) || !storable(v) {
			delete(carrier, k)
		}
	}
	if size > maxContext {
		short := propagation.MapCarrier{}
		if parent := carrier.Get("traceparent"); len(parent) <= maxContext {
			short.Set("traceparent", parent)
		}
		carrier = short
	}
	return outbox.AddHeaders(carrier)
}

// storable reports whether PostgreSQL can store s as text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// Enqueue is outbox.Enqueue within a span "send TYPE", a child of ctx's, whose context travels with
// the task: tel.Enqueue(ctx, tx, SendWelcome.New(w)). The span ends with the statement, before the
// commit.
func (t *Telemetry) Enqueue(ctx context.Context, tx outbox.Querier, task outbox.TaskSpec) (outbox.Enqueued, error) {
	var one outbox.Enqueued
	_, err := t.enqueue(ctx, []outbox.TaskSpec{task},
		func(ctx context.Context, tasks []outbox.TaskSpec) ([]outbox.Enqueued, error) {
			var err error
			one, err = outbox.Enqueue(ctx, tx, tasks[0].Type, tasks[0].Payload, tasks[0].Options...)
			return []outbox.Enqueued{one}, err
		})
	return one, err
}

// EnqueueMany is outbox.EnqueueMany within one span, whose context travels with all tasks. Its name
// is "send TYPE" if they are of one type, else "send".
func (t *Telemetry) EnqueueMany(ctx context.Context, tx outbox.Querier, tasks []outbox.TaskSpec) ([]outbox.Enqueued,
	error) {
	if len(tasks) == 0 {
		return outbox.EnqueueMany(ctx, tx, tasks)
	}
	return t.enqueue(ctx, tasks, func(ctx context.Context, tasks []outbox.TaskSpec) ([]outbox.Enqueued, error) {
		return outbox.EnqueueMany(ctx, tx, tasks)
	})
}

// insert is outbox.Enqueue or outbox.EnqueueMany.
type insert func(context.Context, []outbox.TaskSpec) ([]outbox.Enqueued, error)

func (t *Telemetry) enqueue(ctx context.Context, tasks []outbox.TaskSpec, do insert) ([]outbox.Enqueued, error) {
	name, attributes := "send", opSend
	types := map[string]int64{}
	for _, task := range tasks {
		types[task.Type]++
	}
	if len(types) == 1 {
		name += " " + tasks[0].Type
		attributes = with(attributes, semconv.MessagingDestinationName(tasks[0].Type))
	}
	measured := attributes
	if len(tasks) > 1 {
		attributes = with(attributes, semconv.MessagingBatchMessageCount(len(tasks)))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attributes...))
	defer span.End()
	header := t.TraceContext(ctx)
	sent := make([]outbox.TaskSpec, len(tasks))
	for i, task := range tasks {
		task.Options = append(slices.Clip(task.Options), header)
		sent[i] = task
	}
	start := time.Now()
	results, err := do(ctx, sent)
	took := time.Since(start).Seconds()
	if err != nil {
		measured = with(measured, errorType(err))
		t.fail(span, err)
	} else if len(results) == 1 {
		span.SetAttributes(messageID(results[0].ID),
			attribute.String("outbox.outcome", string(results[0].Outcome)))
	}
	t.operation.Record(ctx, took, metric.WithAttributes(measured...))
	for taskType, n := range types {
		of := with(opSend[:2], semconv.MessagingDestinationName(taskType))
		if err != nil {
			of = with(of, errorType(err))
		}
		t.sent.Add(ctx, n, metric.WithAttributes(of...))
	}
	return results, err
}

// fail marks a span as failed.
func (t *Telemetry) fail(span trace.Span, err error) {
	span.SetAttributes(errorType(err))
	if t.config.HideErrors {
		span.SetStatus(codes.Error, "")
		return
	}
	text := err.Error()
	if panicked(err) { // no value of a panic is in a span
		text = errUnreturned.Error()
	}
	if len(text) > 4<<10 {
		text = text[:4<<10]
	}
	span.SetStatus(codes.Error, strings.ToValidUTF8(text, "\uFFFD"))
}
