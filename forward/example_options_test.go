package forward_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// publisher is a Publisher of one function for each event.
type publisher func(e *forward.Event) error

func (p publisher) Publish(_ context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		errs[i] = p(e)
	}
	return errs
}

// published publishes one order, with a handler that was registered before.
func published(reg *handlers.Registry) {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	relaytest.EnqueueAll(db, OrderPlaced.New(Order{ID: 7}, outbox.OrderedBy("customer 1")))
	relaytest.RunDue(context.Background(), db, reg)
}

// The topic has the type in its name.
func ExampleTo() {
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, printer{}, forward.To("shop.{type}"))
	published(reg)
	// Output: shop.order.placed customer 1 {"id": 7}
}

// Each customer has an endpoint.
func ExampleRoute() {
	endpointOf := func(_ context.Context, e *forward.Event) (string, error) {
		return "https://hooks.example.com/" + e.OrderingKey[len("customer "):], nil
	}
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, printer{}, forward.Route(endpointOf))
	published(reg)
	// Output: https://hooks.example.com/1 customer 1 {"id": 7}
}

// attributes prints the attributes of an event.
var attributes = publisher(func(e *forward.Event) error {
	fmt.Println(e.Source, e.Type, e.Subject)
	return nil
})

// Consumers see a name of the app, and not that of its database.
func ExampleSource() {
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, attributes, forward.Source("/shop"))
	published(reg)
	// Output: /shop order.placed
}

// The type that consumers know has a name of its own.
func ExampleType() {
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, attributes, forward.Source("/shop"), forward.Type("com.example.order.placed"))
	published(reg)
	// Output: /shop com.example.order.placed
}

// The subject says which customer the event is about.
func ExampleSubject() {
	customer := func(_ context.Context, e *forward.Event) (string, error) { return e.OrderingKey, nil }
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, attributes, forward.Source("/shop"), forward.Subject(customer))
	published(reg)
	// Output: /shop order.placed customer 1
}

// A broker that takes large batches.
func ExampleBatchSize() {
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, printer{}, forward.BatchSize(1000))
	published(reg)
	// Output: order.placed customer 1 {"id": 7}
}

// A broker that is far away has more time for a call.
func ExampleTimeout() {
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, printer{}, forward.Timeout(20*time.Second))
	published(reg)
	// Output: order.placed customer 1 {"id": 7}
}

// Published events are kept for a week, and one that fails has three attempts.
func ExampleHandlerOptions() {
	reg := handlers.New()
	forward.Register(reg, OrderPlaced, printer{},
		forward.HandlerOptions(handlers.Retention(7*24*time.Hour), handlers.MaxAttempts(3)))
	published(reg)
	// Output: order.placed customer 1 {"id": 7}
}

// The events of a target have a priority of their own.
func ExampleTaskOptions() {
	reg := handlers.New()
	forward.Fanout(reg, OrderPlaced, map[string]forward.Target{
		"billing": {Publisher: printer{}, Options: []forward.Option{forward.TaskOptions(outbox.Priority(-10))}},
		"search":  {Publisher: printer{}, Options: []forward.Option{forward.TaskOptions(outbox.Priority(10))}},
	})
	published(reg)
	// Unordered output:
	// order.placed customer 1 {"id": 7}
	// order.placed customer 1 {"id": 7}
}

var (
	errTooLarge = errors.New("too large")
	errDown     = errors.New("connection refused")
	errFull     = errors.New("the queue is full")
)

// failed prints the counts of a Forwarder after a publisher has failed with an error.
func failed(err error) {
	reg := handlers.New()
	f := forward.Register(reg, OrderPlaced, publisher(func(*forward.Event) error { return err }))
	published(reg)
	s := f.Stats()
	fmt.Printf("permanent %d, temporary %d, unavailable %d\n", s.Permanent, s.Temporary, s.Unavailable)
}

// A Publisher marks an error that no retry can mend: the event is a dead letter.
func ExamplePermanent() {
	failed(forward.Permanent(errTooLarge))
	// Output: permanent 1, temporary 0, unavailable 0
}

// A Publisher marks an error of the connection: no attempt of the event counts.
func ExampleUnavailable() {
	failed(forward.Unavailable(errDown, 0))
	// Output: permanent 0, temporary 0, unavailable 1
}

// A Publisher marks an error of the topic: the attempt of the event counts.
func ExampleTargetUnavailable() {
	failed(forward.TargetUnavailable(errFull, 0))
	// Output: permanent 0, temporary 1, unavailable 0
}

// Tests of a Publisher ask for the mark of an error.
func ExampleIsPermanent() {
	err := fmt.Errorf("publish: %w", forward.Permanent(errTooLarge))
	fmt.Println(forward.IsPermanent(err), forward.IsPermanent(errTooLarge))
	// Output: true false
}

func ExampleIsUnavailable() {
	err := fmt.Errorf("publish: %w", forward.Unavailable(errDown, time.Minute))
	fmt.Println(forward.IsUnavailable(err), forward.IsUnavailable(errDown))
	// Output: true false
}

func ExampleIsTargetUnavailable() {
	err := fmt.Errorf("publish: %w", forward.TargetUnavailable(errFull, 0))
	fmt.Println(forward.IsTargetUnavailable(err), forward.IsUnavailable(err))
	// Output: true false
}

// A readiness probe, or a line of the app's log.
func ExampleForwarder_Health() {
	reg := handlers.New()
	down := publisher(func(*forward.Event) error { return forward.Unavailable(errDown, 0) })
	f := forward.Register(reg, OrderPlaced, down)
	fmt.Println(f.Health())
	published(reg)
	fmt.Println(errors.Is(f.Health(), forward.ErrUnavailable))
	// Output:
	// <nil>
	// true
}

func ExampleForwarder_Stats() {
	reg := handlers.New()
	f := forward.Register(reg, OrderPlaced, printer{})
	published(reg)
	fmt.Println("published:", f.Stats().Published)
	// Output:
	// order.placed customer 1 {"id": 7}
	// published: 1
}

// The task types of targets, whose dead letters tools show by these names.
func ExampleForwarder_TaskType() {
	forwarders := forward.Fanout(handlers.New(), OrderPlaced, map[string]forward.Target{"billing": {Publisher: printer{}}})
	fmt.Println(forwarders["billing"].TaskType())
	// Output: order.placed/billing
}

// A Publisher for a broker writes the attributes as headers.
func ExampleEvent_CloudEvents() {
	event := &forward.Event{ID: "0b5a3c1e-77d2-8f60-8000-00000000002a", Source: "/shop", Type: "order.placed",
		Time: time.Date(2026, 7, 1, 9, 0, 0, 0, time.UTC), OrderingKey: "customer 1"}
	for _, h := range event.CloudEvents("ce_") {
		fmt.Println(h.Name, h.Value)
	}
	// Output:
	// ce_specversion 1.0
	// ce_id 0b5a3c1e-77d2-8f60-8000-00000000002a
	// ce_source /shop
	// ce_type order.placed
	// ce_time 2026-07-01T09:00:00Z
	// ce_partitionkey customer 1
}
