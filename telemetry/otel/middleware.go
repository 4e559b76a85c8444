package outboxotel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.30.0"
	"go.opentelemetry.io/otel/trace"
)

// Middleware puts each call of a handler into a span "process TYPE", and before it the claim that
// took its tasks into a span "receive TYPE" with the claim's real times; the second is a child of
// the first. What the handler starts with its ctx is a child of the call's span. The gap before
// "receive" is for how long the task waited, from the enqueuer's span on.
//
// A claim of Leased tasks that took several is shown with each of them. Panics and runtime.Goexit
// end the spans as failed. A failure is an error or Dead, in a batch of at least one
// task; Snooze, RetryAfter, Discard and RunAgain are none, and in the attribute outbox.result.
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

var results = map[handlers.Action]string{handlers.ActionRetry: "failed", handlers.ActionRetryAfter: "throttled",
	handlers.ActionSnooze: "snoozed", handlers.ActionDiscard: "discarded", handlers.ActionDead: "dead",
	handlers.ActionRunAgain: "run_again"}

// end notes how a handler ended that returned an error.
func (t *Telemetry) end(span trace.Span, err error) {
	var some handlers.BatchResult
	if !errors.As(err, &some) {
		action := handlers.ActionOf(err)
		span.SetAttributes(attribute.String("outbox.result", results[action]))
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
