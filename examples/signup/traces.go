package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/txoutbox/outbox/outboxotel"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// traces makes a sign-up one trace: the request, the two tasks that it enqueues, their claims and their handlers.
type traces struct {
	*outboxotel.Telemetry
	provider trace.TracerProvider
	stop     func() // sends the last spans
}

// newTraces sends spans by OTLP over HTTP to where the standard variable OTEL_EXPORTER_OTLP_ENDPOINT says, http://localhost:4318 for a
// collector on this machine. Without it there are none.
func newTraces(ctx context.Context, logger *slog.Logger) (*traces, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return noTraces()
	}
	who, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "signup")), resource.WithFromEnv())
	if err != nil {
		logger.Warn("traces: what the environment says of this service is left out in part", "error", err)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Warn("traces", "error", err) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(who))
	telemetry, err := outboxotel.New(outboxotel.Config{TracerProvider: provider})
	if err != nil {
		return nil, errors.Join(err, provider.Shutdown(ctx))
	}
	return &traces{telemetry, provider, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			logger.Warn("traces", "error", err) // the app has done its work all the same
		}
	}}, nil
}

func noTraces() (*traces, error) {
	provider := noop.NewTracerProvider()
	telemetry, err := outboxotel.New(outboxotel.Config{TracerProvider: provider})
	return &traces{telemetry, provider, func() {}}, err
}

// requests puts each request that changes something into a span. The others are left out, as the page asks for its lists all the time.
func (t *traces) requests(next http.Handler) http.Handler {
	return otelhttp.NewHandler(next, "", otelhttp.WithTracerProvider(t.provider), otelhttp.WithFilter(func(r *http.Request) bool { return r.Method == http.MethodPost }))
}
