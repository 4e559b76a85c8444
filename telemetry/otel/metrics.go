package outboxotel

import (
	"context"
	"errors"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/relay"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.30.0"
)

type instruments struct {
	operation, handled, wait  metric.Float64Histogram
	sent, consumed            metric.Int64Counter
	ended, dead               metric.Int64Counter
	running, outages, refused metric.Int64UpDownCounter
	registration              metric.Registration
}

// Bounds of histograms in seconds: the conventions' own, and for waits up to a day.
var (
	durations = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	waits     = []float64{0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
)

func (t *Telemetry) makeInstruments(m metric.Meter) error {
	var errs []error
	histogram := func(name, about string, bounds []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, about string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	upDown := func(name, unit, about string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	t.operation = histogram("messaging.client.operation.duration", "Duration of enqueues (send) and claims (receive).",
		durations)
	t.handled = histogram("messaging.process.duration", "Duration of calls of handlers.", durations)
	t.wait = histogram("outbox.task.wait", "For how long tasks had been due when they were claimed.", waits)
	t.sent = counter("messaging.client.sent.messages", "{message}", "Tasks that were enqueued, committed or not.")
	t.consumed = counter("messaging.client.consumed.messages", "{message}", "Tasks that were claimed.")
	t.ended = counter("outbox.task.runs", "{run}", "Ends of runs of tasks, by outcome.")
	t.dead = counter("outbox.task.dead_letters", "{task}", "Tasks that became dead letters, by reason.")
	t.running = upDown("outbox.relay.running", "{relay}", "Relays of this process that run.")
	t.outages = upDown("outbox.relay.outage", "{relay}", "Relays of this process that cannot work with PostgreSQL.")
	t.refused = upDown("outbox.relay.refused", "{relay}",
		"Relays of this process of which PostgreSQL refuses work, which no waiting mends.")
	if t.config.DB != nil {
		errs = append(errs, t.observeStats(m))
	}
	return errors.Join(errs...)
}

// observeStats reads the counts at each collection.
func (t *Telemetry) observeStats(m metric.Meter) error {
	tasks, err1 := m.Int64ObservableGauge("outbox.tasks", metric.WithUnit("{task}"),
		metric.WithDescription("Tasks by type and state."))
	oldest, err2 := m.Float64ObservableGauge("outbox.oldest_ready", metric.WithUnit("s"),
		metric.WithDescription("For how long the ready task that has waited longest has been due."))
	finished, err3 := m.Int64ObservableCounter("outbox.tasks.finished", metric.WithUnit("{task}"),
		metric.WithDescription("Tasks that are done."))
	failures, err4 := m.Int64ObservableCounter("outbox.runs.failed", metric.WithUnit("{run}"),
		metric.WithDescription("Runs that failed, of all relays."))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	var err error
	t.registration, err = m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
		defer cancel()
		all, err := outbox.Stats(ctx, t.config.DB, outbox.Schema(t.config.Schema))
		if err != nil {
			return err
		}
		for _, s := range all {
			of := metric.WithAttributes(semconv.MessagingDestinationName(s.Type))
			for state, n := range map[string]int64{"ready": s.Ready, "scheduled": s.Scheduled, "retrying": s.Retrying,
				"leased": s.Leased, "waiting": s.Waiting, "dead": s.Dead} {
				o.ObserveInt64(tasks, n, of, metric.WithAttributes(attribute.String("outbox.state", state)))
			}
			o.ObserveFloat64(oldest, s.OldestReady.Seconds(), of)
			o.ObserveInt64(finished, s.Finished, of)
			o.ObserveInt64(failures, s.Failed, of)
		}
		return nil
	}, tasks, oldest, finished, failures)
	return err
}

// Observer returns the observer that measures relays. Any number of them may have it in
// relay.Config.Observers.
func (t *Telemetry) Observer() relay.Observer {
	return relay.Observer{
		Claimed: func(ctx context.Context, c relay.Claim) {
			of := metric.WithAttributes(with(opReceive, semconv.MessagingDestinationName(c.Type))...)
			t.operation.Record(ctx, c.Duration.Seconds(), of)
			t.consumed.Add(ctx, int64(c.Tasks),
				metric.WithAttributes(with(opReceive[:2], semconv.MessagingDestinationName(c.Type))...))
		},
		Ended: func(ctx context.Context, e relay.RunEnd) {
			destination := semconv.MessagingDestinationName(e.Type)
			failedAs := ""
			for _, task := range e.Tasks {
				t.ended.Add(ctx, 1, metric.WithAttributes(destination,
					attribute.String("outbox.outcome", string(task.Outcome))))
				t.wait.Record(ctx, task.Waited.Seconds(), metric.WithAttributes(destination))
				switch task.Outcome {
				case relay.OutcomeDead:
					t.dead.Add(ctx, 1, metric.WithAttributes(destination,
						attribute.String("outbox.reason", string(task.Reason))))
					failedAs = string(task.Outcome)
				case relay.OutcomeFailed, relay.OutcomeLeaseLost, relay.OutcomeInfrastructure,
					relay.OutcomeReleased: // of a batch that failed as a whole
					failedAs = string(task.Outcome)
				}
			}
			if e.Start.IsZero() {
				return
			}
			of := with(opProcess, destination)
			if failedAs != "" {
				of = with(of, semconv.ErrorTypeKey.String(failedAs))
			}
			t.handled.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(of...))
		},
		Changed: func(ctx context.Context, c relay.Change) {
			switch c.Event {
			case relay.EventStarted:
				t.running.Add(ctx, 1)
			case relay.EventStopped:
				t.running.Add(ctx, -1)
			case relay.EventOutageBegan:
				t.outages.Add(ctx, 1)
			case relay.EventOutageEnded:
				t.outages.Add(ctx, -1)
			case relay.EventRefusalBegan:
				t.refused.Add(ctx, 1)
			case relay.EventRefusalEnded:
				t.refused.Add(ctx, -1)
			}
		},
	}
}
