package outboxotel_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
	outboxotel "github.com/txoutbox/outbox/telemetry/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestATraceFromTheRequestThroughEnqueueClaimAndHandlerIsOnePicture(t *testing.T) {
	db := relaytest.NewDatabase(t)
	a := newTraced(t, outboxotel.Config{})
	a.signUp(t, db.DB)
	relaytest.Run(t, db.DB, a.registry(), relay.Config{PollInterval: 20 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	relaytest.Eventually(t, 10*time.Second, "all spans have ended",
		func() bool { return len(a.spans.GetSpans()) == 13 })

	request := a.named(t, "POST /signup")
	for i, kind := range []string{"TX", "LEASED", "BATCH"} {
		send, receive, process, work := a.named(t, "send "+kind), a.named(t, "receive "+kind),
			a.named(t, "process "+kind), a.named(t, "work "+kind)
		childOf(t, send, request)
		if kind != "BATCH" {
			childOf(t, receive, send)
			if receive.SpanContext.TraceID() != request.SpanContext.TraceID() {
				t.Errorf("the claim of %s is not in the trace of the request", kind)
			}
		} else if receive.Parent.IsValid() {
			t.Error("the claim of a batch has a parent, want links only")
		}
		childOf(t, process, receive)
		childOf(t, work, process)
		linked(t, receive, send)
		linked(t, process, send)
		if send.SpanKind != trace.SpanKindProducer || receive.SpanKind != trace.SpanKindClient ||
			process.SpanKind != trace.SpanKindConsumer {
			t.Errorf("%s: kinds %v, %v, %v", kind, send.SpanKind, receive.SpanKind, process.SpanKind)
		}
		if receive.StartTime.Before(send.StartTime) || !receive.EndTime.After(receive.StartTime) ||
			process.StartTime.Before(receive.EndTime) || process.EndTime.After(time.Now()) {
			t.Errorf("%s was sent at %v, received from %v to %v, processed at %v", kind, send.StartTime,
				receive.StartTime, receive.EndTime, process.StartTime)
		}
		for name, s := range map[string]tracetest.SpanStub{"send": send, "receive": receive, "process": process} {
			has(t, s, map[string]string{"messaging.system": "outbox", "messaging.operation.name": name,
				"messaging.operation.type": name, "messaging.destination.name": kind})
			if strings.Contains(fmt.Sprint(s.Attributes), "9000") {
				t.Errorf("%s has a payload in it: %v", s.Name, s.Attributes)
			}
		}
		one := map[string]string{"messaging.message.id": strconv.Itoa(i + 1), "outbox.attempt": "1",
			"outbox.max_attempts": "20", "outbox.kind": strings.ToLower(kind)}
		if kind == "BATCH" {
			one = map[string]string{"messaging.batch.message_count": "1", "messaging.message.id": ""}
		}
		has(t, process, one)
	}
}

func TestALinkedTraceIsOfItsOwn(t *testing.T) {
	db := relaytest.NewDatabase(t)
	a := newTraced(t, outboxotel.Config{NewRoot: true})
	a.signUp(t, db.DB)
	relaytest.Once(t, db.DB, a.registry(), relay.Config{})
	for _, kind := range []string{"TX", "LEASED"} {
		send, receive, process := a.named(t, "send "+kind), a.named(t, "receive "+kind), a.named(t, "process "+kind)
		if receive.Parent.IsValid() || receive.SpanContext.TraceID() == send.SpanContext.TraceID() {
			t.Errorf("the claim of %s is in the request's trace", kind)
		}
		childOf(t, process, receive)
		linked(t, receive, send)
		linked(t, process, send)
	}
}

func TestABatchIsLinkedToEachOfItsEnqueuers(t *testing.T) {
	db := relaytest.NewDatabase(t)
	a := newTraced(t, outboxotel.Config{})
	for i := range 3 {
		ctx, span := a.provider.Tracer("app").Start(t.Context(), fmt.Sprint("request ", i))
		err := outbox.InTx(ctx, db.DB, func(tx *sql.Tx) error {
			_, err := a.EnqueueMany(ctx, tx, []outbox.TaskSpec{relaytest.TypeBatch.New(relaytest.Payload{N: 1}),
				relaytest.TypeBatch.New(relaytest.Payload{N: 2})})
			return err
		})
		span.End()
		if err != nil {
			t.Fatal(err)
		}
	}
	db.Enqueue(t, "BATCH", 1) // without a trace
	relaytest.Once(t, db.DB, a.registry(), relay.Config{})
	process := a.named(t, "process BATCH")
	has(t, process, map[string]string{"messaging.batch.message_count": "7"})
	for i := range 3 {
		childOf(t, a.spans.GetSpans()[2*i], a.named(t, fmt.Sprint("request ", i)))
		linked(t, process, a.spans.GetSpans()[2*i])
		has(t, a.spans.GetSpans()[2*i], map[string]string{"messaging.batch.message_count": "2"})
	}
	if len(process.Links) != 6 {
		t.Errorf("%d links, want one for each task that has a trace", len(process.Links))
	}
}

func TestHowAHandlerEndsIsInItsSpan(t *testing.T) {
	const unreturned = "the handler panicked, or ended its goroutine"
	boom := fmt.Errorf("send: %w", errors.New("boom"))
	for name, c := range map[string]struct {
		end                func() error
		status             codes.Code
		text, result, kind string
	}{
		"nil":   {func() error { return nil }, codes.Unset, "", "", ""},
		"error": {func() error { return boom }, codes.Error, "send: boom", "failed", "*errors.errorString"},
		"dead": {func() error { return handlers.Dead(boom) }, codes.Error, "send: boom", "dead",
			"*errors.errorString"},
		"asked":             {func() error { return handlers.RetryAfter(time.Hour, boom) }, codes.Unset, "", "throttled", ""},
		"snooze":            {func() error { return handlers.Snooze(time.Hour) }, codes.Unset, "", "snoozed", ""},
		"discard":           {func() error { return handlers.Discard(boom) }, codes.Unset, "", "discarded", ""},
		"middleware panics": {func() error { panic("secret") }, codes.Error, unreturned, "", "panic"},
		"handler panics": {func() error { return &handlers.PanicError{Value: boom} }, codes.Error, unreturned, "failed",
			"panic"},
		"some": {func() error { return handlers.BatchResult{1: boom, 2: handlers.Snooze(1)} }, codes.Error,
			"1 tasks of the batch failed, one of them: send: boom", "", "*errors.errorString"},
	} {
		for _, hide := range []bool{false, true} {
			t.Run(fmt.Sprint(name, hide), func(t *testing.T) {
				a := newTraced(t, outboxotel.Config{HideErrors: hide})
				err := func() (err error) {
					defer func() {
						if p := recover(); p != nil {
							err = fmt.Errorf("%v", p)
						}
					}()
					return a.Middleware()(func(context.Context, *handlers.Call) error { return c.end() })(t.Context(),
						&handlers.Call{Type: "X", Kind: "batch"})
				}()
				if (err == nil) != (name == "nil") {
					t.Errorf("the result became %v", err)
				}
				s := a.named(t, "process X")
				if hide {
					c.text = ""
				}
				if s.Status.Code != c.status || s.Status.Description != c.text ||
					value(s, "outbox.result") != c.result || value(s, "error.type") != c.kind {
					t.Errorf("status %v %q, result %q, error.type %q", s.Status.Code, s.Status.Description,
						value(s, "outbox.result"), value(s, "error.type"))
				}
				if len(a.spans.GetSpans()) != 1 {
					t.Errorf("without a claim there are the spans\n%s", a.picture())
				}
			})
		}
	}
}

func TestATraceContextNeverMakesAnEnqueueFail(t *testing.T) {
	db := relaytest.NewDatabase(t)
	members := []string{}
	for i := range 60 {
		members = append(members, fmt.Sprintf("k%d=%s", i, strings.Repeat("v", 100)))
	}
	large, err := baggage.Parse(strings.Join(members, ","))
	if err != nil {
		t.Fatal(err)
	}
	a := newTraced(t, outboxotel.Config{Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})})
	ctx, span := a.provider.Tracer("app").Start(baggage.ContextWithBaggage(t.Context(), large), "request")
	defer span.End()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := relaytest.TypeTx.Enqueue(ctx, tx, relaytest.Payload{}, a.TraceContext(ctx)); err != nil {
		t.Fatal(err)
	}
	if _, err := relaytest.TypeTx.Enqueue(t.Context(), tx, relaytest.Payload{},
		a.TraceContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, task := range outboxtest.Enqueued(t, tx, relaytest.TypeTx, nil) {
		got = append(got, fmt.Sprint(task.Headers))
	}
	want := fmt.Sprintf("[map[traceparent:00-%s-%s-01] map[]]", span.SpanContext().TraceID(),
		span.SpanContext().SpanID())
	if fmt.Sprint(got) != want {
		t.Errorf("headers %v, want %v", got, want)
	}
}

func TestAFailedEnqueueIsAFailedSpan(t *testing.T) {
	a := newTraced(t, outboxotel.Config{})
	_, err := a.Enqueue(t.Context(), nil, relaytest.TypeTx.New(relaytest.Payload{}))
	if !errors.Is(err, outbox.ErrNoTransaction) {
		t.Fatalf("got %v, want ErrNoTransaction", err)
	}
	if s := a.named(t, "send TX"); s.Status.Code != codes.Error || value(s, "error.type") == "" {
		t.Errorf("status %v, %v", s.Status, s.Attributes)
	}
}

func TestABadConfigIsRefused(t *testing.T) {
	_, err := outboxotel.New(outboxotel.Config{Schema: "A", Timeout: -1})
	if err == nil || !strings.Contains(err.Error(), `Config.Schema: "A"`) ||
		!strings.Contains(err.Error(), "Config.Timeout: -1ns") {
		t.Errorf("got %v, want an error of both", err)
	}
}
