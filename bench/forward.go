package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/txoutbox/outbox/bench/broker"
	"github.com/txoutbox/outbox/bench/watermill"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

const (
	sideForwardNATS    = "outbox to JetStream"
	sideForwarderNATS  = "watermill's Forwarder to JetStream"
	sideBareNATS       = "nats.go from memory to JetStream"
	sideForwardKafka   = "outbox to Kafka"
	sideForwarderKafka = "watermill's Forwarder to Kafka"
	forwardBatch       = 1000
	forwardWorkers     = 4
)

// forwarding publishes what a database has to a broker until stop.
type forwarding func(ctx context.Context, url, at string, done func(n int)) (stop func() error, err error)

func forwardSides(p plan) []side {
	ours := func(name string) side { return oursSide(name, p.backlog, relaySettings{}) }
	forwarder := func(name string) side {
		s := watermillSide(name, p.backlog)
		s.key = fmt.Sprint("watermill forwarder ", p.backlog)
		s.build = func(ctx context.Context, d *database) error {
			return watermill.Build(ctx, d.DB, watermill.FillForwarderSQL, payload, p.backlog, broker.Subject)
		}
		return s
	}
	bare, fromMemory := bareForward(p.backlog)
	return []side{
		to(broker.NATS, ours(sideForwardNATS), forwardOurs),
		to(broker.NATS, forwarder(sideForwarderNATS), watermill.Forward),
		to(broker.NATS, bare, fromMemory),
		to(broker.Kafka, ours(sideForwardKafka), forwardOurs),
		to(broker.Kafka, forwarder(sideForwarderKafka), watermill.Forward),
	}
}

// to is a side that starts a broker, and publishes to it.
func to(startBroker func(context.Context) (at string, stop func(), err error), s side,
	run forwarding) side {
	s.start = func(ctx context.Context, url string, done func(int)) (func() error, error) {
		at, stopBroker, err := startBroker(ctx)
		if err != nil {
			return nil, err
		}
		stop, err := run(ctx, url, at, done)
		if err != nil {
			stopBroker()
			return nil, err
		}
		return func() error { defer stopBroker(); return stop() }, nil
	}
	return s
}

// bareForward publishes n events from memory to JetStream.
func bareForward(n int) (side, forwarding) {
	s := oursSide(sideBareNATS, 0, relaySettings{})
	s.tasks = n
	var left atomic.Int64
	s.left = func(context.Context, *sql.DB) (int, error) { return int(left.Load()), nil }
	return s, func(ctx context.Context, _, at string, done func(int)) (func() error, error) {
		left.Store(int64(n))
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			ended <- broker.ToNATS(ctx, at, n, payload, func(n int) { left.Add(-int64(n)); done(n) })
		}()
		return func() error { cancel(); return <-ended }, nil
	}
}

// acknowledged tells done of what its publisher has published.
type acknowledged struct {
	forward.Publisher
	done func(n int)
}

func (a acknowledged) Publish(ctx context.Context, events []*forward.Event) []error {
	errs := a.Publisher.Publish(ctx, events)
	n := len(events)
	for _, err := range errs {
		if err != nil {
			n--
		}
	}
	a.done(n)
	return errs
}

// forwardOurs runs a relay that publishes to a broker.
func forwardOurs(ctx context.Context, url, at string, done func(int)) (stop func() error, err error) {
	var to interface {
		forward.Publisher
		io.Closer
	}
	if strings.HasPrefix(at, "nats://") {
		to, err = outboxnats.Open(at, outboxnats.Config{})
	} else {
		to, err = outboxkafka.Open(at, outboxkafka.Config{})
	}
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	reg := handlers.New()
	forward.Register(reg, benchTask, acknowledged{to, done}, forward.To(broker.Subject), forward.BatchSize(forwardBatch))
	stopRelay, err := runRelay(ctx, db, reg, relay.Config{Workers: forwardWorkers})
	if err != nil {
		return nil, err
	}
	return func() error {
		err := stopRelay()
		return errors.Join(err, to.Close())
	}, nil
}
