package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/bench/broker"
	"github.com/txoutbox/outbox/bench/watermill"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

const (
	caseForward        = "forward"
	sideForwardNATS    = "outbox to JetStream"
	sideForwarderNATS  = "watermill's Forwarder to JetStream"
	sideBareNATS       = "nats.go from memory to JetStream"
	sideForwardKafka   = "outbox to Kafka"
	sideForwarderKafka = "watermill's Forwarder to Kafka"
	forwardBatch       = 1000
	forwardWorkers     = 4
	natsScheme         = "nats://"
)

var forwardCase = benchCase{
	name: caseForward, title: "events from committed rows to the broker's acknowledgement",
	sides: forwardSides, turn: burn(func(p plan) time.Duration { return p.short }),
}

// forwarding publishes what a database has to a broker until stop.
type forwarding func(ctx context.Context, url, at string, done func(n int)) (stop func() error, err error)

func forwardSides(p plan) []side {
	n := p.backlog
	var all []side
	for _, to := range []struct {
		ours, watermill string
		start           func(context.Context) (string, func(), error)
	}{
		{sideForwardNATS, sideForwarderNATS, broker.NATS},
		{sideForwardKafka, sideForwarderKafka, broker.Kafka},
	} {
		on := func(s side, run forwarding) side {
			s.start = func(ctx context.Context, url string, done func(int)) (func() error, error) {
				at, stopBroker, err := to.start(ctx)
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
		forwarder := watermillSide(to.watermill, n)
		forwarder.key = fmt.Sprint("watermill forwarder ", n)
		forwarder.build = func(ctx context.Context, d *database) error {
			if err := watermill.Setup(ctx, d.DB); err != nil {
				return err
			}
			return watermill.FillForwarder(ctx, d.DB, n, broker.Subject, payload)
		}
		all = append(all, on(oursSide(to.ours, n, relaySettings{}), forwardOurs), on(forwarder, watermill.Forward))
		if to.ours == sideForwardNATS {
			all = append(all, on(bareForward(n)))
		}
	}
	return all
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
	if strings.HasPrefix(at, natsScheme) {
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
	r, err := relay.New(db,
		reg, relay.Config{Workers: forwardWorkers, DrainTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() error {
		cancel()
		err := <-ended
		to.Close()
		return errors.Join(err, db.Close())
	}, nil
}
