package outboxotel_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxotel "github.com/txoutbox/outbox/telemetry/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// traced is an app with a tracer that keeps its spans.
type traced struct {
	*outboxotel.Telemetry
	spans    *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
}

func newTraced(t *testing.T, config outboxotel.Config) *traced {
	t.Helper()
	a := &traced{spans: tracetest.NewInMemoryExporter()}
	a.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(a.spans))
	config.TracerProvider = a.provider
	var err error
	if a.Telemetry, err = outboxotel.New(config); err != nil {
		t.Fatal(err)
	}
	return a
}

// named is the only span of that name.
func (a *traced) named(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	var found []tracetest.SpanStub
	for _, s := range a.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %q in\n%s", len(found), name, a.picture())
	}
	return found[0]
}

func (a *traced) picture() string {
	var b strings.Builder
	for _, s := range a.spans.GetSpans() {
		fmt.Fprintf(&b, "%s trace %s span %s parent %s links %d %v\n", s.Name, s.SpanContext.TraceID(),
			s.SpanContext.SpanID(), s.Parent.SpanID(), len(s.Links), s.Attributes)
	}
	return b.String()
}

func value(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return fmt.Sprint(a.Value.AsInterface())
		}
	}
	return ""
}

func has(t *testing.T, s tracetest.SpanStub, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got := value(s, k); got != v {
			t.Errorf("%s: %s is %q, want %q", s.Name, k, got, v)
		}
	}
}

func childOf(t *testing.T, child, parent tracetest.SpanStub) {
	t.Helper()
	if child.Parent.SpanID() != parent.SpanContext.SpanID() ||
		child.SpanContext.TraceID() != parent.SpanContext.TraceID() {
		t.Errorf("%q is not a child of %q", child.Name, parent.Name)
	}
}

func linked(t *testing.T, from, to tracetest.SpanStub) {
	t.Helper()
	for _, l := range from.Links {
		if l.SpanContext.SpanID() == to.SpanContext.SpanID() && l.SpanContext.TraceID() == to.SpanContext.TraceID() {
			return
		}
	}
	t.Errorf("%q has no link to %q", from.Name, to.Name)
}

// signUp is a request that enqueues a task of each kind.
func (a *traced) signUp(t *testing.T, db *sql.DB) {
	t.Helper()
	ctx, span := a.provider.Tracer("app").Start(t.Context(), "POST /signup", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		for _, task := range []outbox.TaskSpec{
			relaytest.TypeTx.New(relaytest.Payload{N: 90001}, outbox.Headers(map[string]string{"user": "7"})),
			relaytest.TypeLeased.New(relaytest.Payload{N: 90002}),
			relaytest.TypeBatch.New(relaytest.Payload{N: 90003}),
		} {
			if _, err := a.Enqueue(ctx, tx, task); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// registry has a handler of each kind, with a span of its own inside.
func (a *traced) registry() *handlers.Registry {
	reg := handlers.New()
	reg.Use(a.Middleware())
	work := func(ctx context.Context, kind string) {
		_, span := a.provider.Tracer("app").Start(ctx, "work "+kind)
		span.End()
	}
	handlers.Tx(reg, relaytest.TypeTx, func(ctx context.Context, _ *sql.Tx,
		task *outbox.Task[relaytest.Payload]) error {
		if task.Headers["user"] != "7" {
			return fmt.Errorf("the task has the headers %v", task.Headers)
		}
		work(ctx, "TX")
		return nil
	})
	handlers.Leased(reg, relaytest.TypeLeased, func(ctx context.Context, _ *outbox.Task[relaytest.Payload]) error {
		work(ctx, "LEASED")
		return nil
	})
	handlers.Batch(reg, relaytest.TypeBatch, 10,
		func(ctx context.Context, _ *sql.Tx, _ []*outbox.Task[relaytest.Payload]) error {
			work(ctx, "BATCH")
			return nil
		})
	return reg
}
