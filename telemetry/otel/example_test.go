package outboxotel_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"

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
