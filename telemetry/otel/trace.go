package outboxotel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
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

// Enqueue inserts a task, as outbox.Enqueue does, within a span "send TYPE", a child of ctx's,
// whose context travels with the task: tel.Enqueue(ctx, tx, SendWelcome.New(w)). The span ends with
// the statement, before the commit.
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

// EnqueueMany inserts all tasks, as outbox.EnqueueMany does, within one span, whose context travels
// with all tasks. Its name is "send TYPE" if they are of one type, else "send".
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

// Middleware puts each call of a handler into a span "process TYPE", and before it the claim that
// took its tasks into a span "receive TYPE" with the claim's real times; the second is a child of
// the first. What the handler starts with its ctx is a child of the call's span. The gap before
// "receive" is for how long the task waited, from the enqueuer's span on.
//
// A claim of Leased tasks that took several is shown with each of them. Panics and runtime.Goexit
// end the spans as failed. A failure is an error or Dead, in a batch of at least one
// task; other results of package handlers are none. The attribute outbox.result names the result.
func (t *Telemetry) Middleware() handlers.Middleware {
	return func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error { return t.process(ctx, call, next) }
	}
}

func (t *Telemetry) process(ctx context.Context, call *handlers.Call, next handlers.Func) (err error) {
	ctx, links := t.origin(ctx, call)
	about := t.about(call)
	if !call.ClaimStart.IsZero() {
		var receive trace.Span
		ctx, receive = t.tracer.Start(ctx, "receive "+call.Type, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithLinks(links...),
			trace.WithTimestamp(call.ClaimStart), trace.WithAttributes(with(opReceive, about...)...))
		receive.End(trace.WithTimestamp(call.ClaimEnd))
	}
	ctx, span := t.tracer.Start(ctx, "process "+call.Type, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...),
		trace.WithAttributes(with(opProcess, about...)...))
	returned := false
	defer func() {
		switch {
		case !returned:
			t.fail(span, errUnreturned)
		case err != nil:
			t.end(span, err)
		}
		span.End()
	}()
	err = next(ctx, call)
	returned = true
	return err
}

// errUnreturned does not say with what the handler panicked: the relay's log does.
var errUnreturned = errors.New("the handler panicked, or ended its goroutine")

func panicked(err error) bool {
	var p *handlers.PanicError
	return errors.Is(err, errUnreturned) || errors.As(err, &p)
}

// origin is the context for the spans of a call, and links to those that enqueued its tasks.
func (t *Telemetry) origin(ctx context.Context, call *handlers.Call) (context.Context, []trace.Link) {
	var links []trace.Link
	from := ctx
	for _, task := range call.Tasks {
		from = t.config.Propagator.Extract(ctx, propagation.MapCarrier(task.Headers))
		if creator := trace.SpanContextFromContext(from); creator.IsValid() && len(task.Headers) > 0 &&
			!creator.Equal(trace.SpanContextFromContext(ctx)) {
			links = append(links, trace.Link{SpanContext: creator,
				Attributes: []attribute.KeyValue{messageID(task.ID)}})
		}
	}
	if call.Kind == outbox.KindBatch {
		return ctx, links
	}
	if t.config.NewRoot {
		from = trace.ContextWithSpan(from, trace.SpanFromContext(ctx))
	}
	return from, links
}

func messageID(taskID int64) attribute.KeyValue {
	return semconv.MessagingMessageID(strconv.FormatInt(taskID, 10))
}

// about are attributes of both spans of a call.
func (t *Telemetry) about(call *handlers.Call) []attribute.KeyValue {
	out := []attribute.KeyValue{semconv.MessagingDestinationName(call.Type), attribute.String("outbox.kind", string(call.Kind))}
	if call.Kind == outbox.KindBatch {
		return append(out, semconv.MessagingBatchMessageCount(len(call.Tasks)))
	}
	task := call.Tasks[0]
	return append(out, messageID(task.ID), semconv.MessagingMessageBodySize(len(task.Payload)),
		attribute.Int("outbox.attempt", task.Attempt), attribute.Int("outbox.max_attempts", task.MaxAttempts))
}

// end notes how a handler ended that returned an error.
func (t *Telemetry) end(span trace.Span, err error) {
	var some handlers.BatchResult
	if !errors.As(err, &some) {
		action := handlers.ActionOf(err)
		span.SetAttributes(attribute.String("outbox.result", handler.ResultOf(err).Action.Outcome()))
		if failed(action) {
			t.fail(span, err)
		}
		return
	}
	bad := 0
	var one error
	for _, err := range some.Unwrap() {
		if failed(handlers.ActionOf(err)) {
			bad++
			one = cmp.Or(one, err)
		}
	}
	if bad > 0 {
		span.SetAttributes(attribute.Int("outbox.failed_tasks", bad))
		t.fail(span, fmt.Errorf("%d tasks of the batch failed, one of them: %w", bad, one))
	}
}

func failed(action handlers.Action) bool {
	return action == handlers.ActionRetry || action == handlers.ActionDead
}

// errorType is the type of the innermost error: few values, and no text.
func errorType(err error) attribute.KeyValue {
	if panicked(err) {
		return semconv.ErrorTypeKey.String("panic")
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return semconv.ErrorTypeKey.String(fmt.Sprintf("%T", err))
		}
		err = inner
	}
}
