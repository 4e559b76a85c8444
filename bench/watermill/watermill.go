// Package watermill runs the PostgreSQL queue of watermill-sql, which deletes what was
// acknowledged, for comparison, and the Forwarder from it to a broker.
package watermill

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

const topic = "bench"

// The queue at its best: batches of 1,000 take half the time of those of 100. There is one
// subscriber: its claims take FOR UPDATE without SKIP LOCKED in REPEATABLE READ, so a second one
// waits and then fails.
var schema = sql.PostgreSQLQueueSchema{SubscribeBatchSize: 1000}

// FillSQL adds messages: the payload of each, and how many.
const FillSQL = `/* bench: fill */
INSERT INTO "watermill_bench" (uuid, payload, metadata)
SELECT gen_random_uuid()::text, $1::json, '{}' FROM generate_series(1, $2::int)`

// FillForwarderSQL adds messages in the envelopes of the Forwarder: the payload of each, how many,
// and their topic.
const FillForwarderSQL = `/* bench: fill */
INSERT INTO "watermill_bench" (uuid, payload, metadata)
SELECT gen_random_uuid()::text, json_build_object('destination_topic', $3::text, 'uuid', gen_random_uuid(),
         'payload', encode(convert_to($1::text, 'UTF8'), 'base64'), 'metadata', json_build_object()), '{}'
  FROM generate_series(1, $2::int)`

// LeftSQL counts the messages that are left.
const LeftSQL = `/* bench: what is left */
SELECT count(*) FROM "watermill_bench"`

// Build makes the table, and fills it by one of the statements.
func Build(ctx context.Context, db *stdsql.DB, fillSQL string, args ...any) error {
	queries, err := schema.SchemaInitializingQueries(sql.SchemaInitializingQueriesParams{Topic: topic})
	if err != nil {
		return err
	}
	for _, q := range append(queries, sql.Query{Query: fillSQL, Args: args}) {
		if _, err := db.ExecContext(ctx, q.Query, q.Args...); err != nil {
			return fmt.Errorf("watermill: build: %w", err)
		}
	}
	return nil
}

// Start subscribes and acknowledges each message; done is told of them.
func Start(ctx context.Context, url string, done func(n int)) (stop func() error, err error) {
	db, sub, err := subscriber(url)
	if err != nil {
		return nil, err
	}
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for m := range messages {
			m.Ack()
			done(1)
		}
	}()
	return func() error {
		err := sub.Close()
		<-ended
		return errors.Join(err, db.Close())
	}, nil
}

func subscriber(url string) (*stdsql.DB, *sql.Subscriber, error) {
	db, err := stdsql.Open("postgres", url)
	if err != nil {
		return nil, nil, err
	}
	sub, err := sql.NewSubscriber(sql.BeginnerFromStdSQL(db), sql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
	}, watermill.NopLogger{})
	return db, sub, err
}

// counted tells done of what its publisher has published.
type counted struct {
	message.Publisher
	done func(n int)
}

func (c counted) Publish(topic string, messages ...*message.Message) error {
	err := c.Publisher.Publish(topic, messages...)
	if err == nil {
		c.done(len(messages))
	}
	return err
}

// Forward runs the Forwarder from the SQL queue to a broker: nats://… or the addresses of Kafka.
func Forward(ctx context.Context, url, broker string, done func(n int)) (stop func() error, err error) {
	var to message.Publisher
	if strings.HasPrefix(broker, "nats://") {
		to, err = nats.NewPublisher(nats.PublisherConfig{URL: broker, Marshaler: &nats.NATSMarshaler{}},
			watermill.NopLogger{})
	} else {
		to, err = kafka.NewPublisher(kafka.PublisherConfig{Brokers: strings.Split(broker, ","),
			Marshaler: kafka.DefaultMarshaler{}}, watermill.NopLogger{})
	}
	if err != nil {
		return nil, err
	}
	db, sub, err := subscriber(url)
	if err != nil {
		return nil, err
	}
	f, err := forwarder.NewForwarder(sub, counted{to, done}, watermill.NopLogger{},
		forwarder.Config{ForwarderTopic: topic})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	return func() error {
		cancel()
		err := errors.Join(f.Close(), <-ended, sub.Close())
		return errors.Join(err, to.Close(), db.Close())
	}, nil
}
