// Package watermill runs the PostgreSQL queue of watermill-sql, which deletes what was
// acknowledged, for comparison.
package watermill

import (
	"context"
	stdsql "database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
)

const topic = "bench"

// The queue at its best: batches of 1,000 take half the time of those of 100. There is one
// subscriber: its claims take FOR UPDATE without SKIP LOCKED in REPEATABLE READ, so a second one
// waits and then fails.
var schema = sql.PostgreSQLQueueSchema{SubscribeBatchSize: 1000}

// Setup makes the table.
func Setup(ctx context.Context, db *stdsql.DB) error {
	queries, err := schema.SchemaInitializingQueries(sql.SchemaInitializingQueriesParams{Topic: topic})
	if err != nil {
		return err
	}
	for _, q := range queries {
		if _, err := db.ExecContext(ctx, q.Query, q.Args...); err != nil {
			return fmt.Errorf("watermill: set up: %w", err)
		}
	}
	return nil
}

const fillSQL = `/* bench: fill */
INSERT INTO "watermill_bench" (uuid, payload, metadata)
SELECT gen_random_uuid()::text, $1::json, '{}' FROM generate_series(1, $2::int)`

// Fill adds n messages.
func Fill(ctx context.Context, db *stdsql.DB, n int, payload string) error {
	if _, err := db.ExecContext(ctx, fillSQL, payload, n); err != nil {
		return fmt.Errorf("watermill: fill: %w", err)
	}
	return nil
}

// LeftSQL counts the messages that are left.
const LeftSQL = `/* bench: what is left */
SELECT count(*) FROM "watermill_bench"`

// Start subscribes and acknowledges each message; done is told of them.
func Start(ctx context.Context, url string, done func(n int)) (stop func() error, err error) {
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
		_ = db.Close()
		return err
	}, nil
}
