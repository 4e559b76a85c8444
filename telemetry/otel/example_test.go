package outboxotel_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxotel "github.com/txoutbox/outbox/telemetry/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

type Welcome struct{ UserID int64 }

var SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")

// The trace of a request goes on in the handler of the task that it enqueued.
func Example() {
	ctx := context.Background()
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	spans := tracetest.NewInMemoryExporter() // an app has one that sends them to its collector
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tel, err := outboxotel.New(outboxotel.Config{TracerProvider: provider})
	relaytest.Must(err)

	request, span := provider.Tracer("app").Start(ctx, "POST /signup")
	relaytest.Must(outbox.InTx(request, db, func(tx *sql.Tx) error {
		_, err := tel.Enqueue(request, tx, SendWelcome.New(Welcome{UserID: 7}))
		return err
	}))
	span.End()

	reg := handlers.New()
	reg.Use(tel.Middleware())
	handlers.Leased(reg, SendWelcome, func(context.Context, *outbox.Task[Welcome]) error { return nil })
	r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler),
		Observers: []relay.Observer{tel.Observer()}})
	relaytest.Must(err)
	relaytest.Must(r.RunOnce(ctx))

	parent := map[string]string{}
	for _, s := range spans.GetSpans() {
		parent[s.SpanContext.SpanID().String()] = s.Name
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, "in", parent[s.Parent.SpanID().String()],
			s.SpanContext.TraceID() == span.SpanContext().TraceID())
	}
	// Output:
	// send SEND_WELCOME in POST /signup true
	// POST /signup in  true
	// receive SEND_WELCOME in send SEND_WELCOME true
	// process SEND_WELCOME in receive SEND_WELCOME true
}

// inRequest calls f in a transaction within the span of a request, and prints the spans that f made.
func inRequest(f func(ctx context.Context, tx *sql.Tx, tel *outboxotel.Telemetry) error) {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tel, err := outboxotel.New(outboxotel.Config{TracerProvider: provider})
	relaytest.Must(err)
	ctx, span := provider.Tracer("app").Start(context.Background(), "POST /signup")
	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { return f(ctx, tx, tel) }))
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name)
	}
	span.End()
}

// Spans and metrics go to the global providers of package otel.
func ExampleNew() {
	tel, err := outboxotel.New(outboxotel.Config{HideErrors: true})
	relaytest.Must(err)
	fmt.Println(tel.Close())
	// Output: <nil>
}

// Enqueue has a span of its own.
func ExampleTelemetry_Enqueue() {
	inRequest(func(ctx context.Context, tx *sql.Tx, tel *outboxotel.Telemetry) error {
		_, err := tel.Enqueue(ctx, tx, SendWelcome.New(Welcome{UserID: 7}))
		return err
	})
	// Output: send SEND_WELCOME
}

// Many tasks of one type are one span.
func ExampleTelemetry_EnqueueMany() {
	inRequest(func(ctx context.Context, tx *sql.Tx, tel *outboxotel.Telemetry) error {
		tasks := []outbox.TaskSpec{SendWelcome.New(Welcome{UserID: 7}), SendWelcome.New(Welcome{UserID: 8})}
		_, err := tel.EnqueueMany(ctx, tx, tasks)
		return err
	})
	// Output: send SEND_WELCOME
}

// The task has the trace context of the request, without a span of its own.
func ExampleTelemetry_TraceContext() {
	inRequest(func(ctx context.Context, tx *sql.Tx, tel *outboxotel.Telemetry) error {
		_, err := SendWelcome.Enqueue(ctx, tx, Welcome{UserID: 7}, tel.TraceContext(ctx))
		if err != nil {
			return err
		}
		var version string
		err = tx.QueryRowContext(ctx, `SELECT left(headers ->> 'traceparent', 2) FROM outbox.task`).Scan(&version)
		fmt.Println("traceparent", version)
		return err
	})
	// Output: traceparent 00
}

// Each call of a handler has a span.
func ExampleTelemetry_Middleware() {
	tel, err := outboxotel.New(outboxotel.Config{})
	relaytest.Must(err)
	defer tel.Close()
	reg := handlers.New(handlers.Timeout(20 * time.Second))
	reg.Use(tel.Middleware())
}

// A relay is measured.
func ExampleTelemetry_Observer() {
	tel, err := outboxotel.New(outboxotel.Config{})
	relaytest.Must(err)
	defer tel.Close()
	config := relay.Config{Observers: []relay.Observer{tel.Observer()}}
	fmt.Println(len(config.Observers))
	// Output: 1
}

// The pool of Config.DB is read until Close.
func ExampleTelemetry_Close() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	tel, err := outboxotel.New(outboxotel.Config{DB: db})
	relaytest.Must(err)
	fmt.Println(tel.Close())
	// Output: <nil>
}
