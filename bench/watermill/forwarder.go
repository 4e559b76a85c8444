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

const fillForwarderSQL = `/* bench: fill */
INSERT INTO "watermill_bench" (uuid, payload, metadata)
SELECT gen_random_uuid()::text, json_build_object('destination_topic', $1::text, 'uuid', gen_random_uuid(),
         'payload', encode(convert_to($2::text, 'UTF8'), 'base64'), 'metadata', json_build_object()), '{}'
  FROM generate_series(1, $3::int)`

// FillForwarder adds n messages in the envelopes of the Forwarder.
func FillForwarder(ctx context.Context, db *stdsql.DB, n int, destination, payload string) error {
	if _, err := db.ExecContext(ctx, fillForwarderSQL, destination, payload, n); err != nil {
		return fmt.Errorf("watermill: fill: %w", err)
	}
	return nil
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
	db, err := stdsql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	sub, err := sql.NewSubscriber(sql.BeginnerFromStdSQL(db), sql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
	}, watermill.NopLogger{})
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
