package outbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/wake"
)

// The channel of LISTEN is the schema's name: relays that sleep poll at once when this is
// committed.
const pauseSQL = `/* outbox: pause or resume a type */
WITH changed AS (
  INSERT INTO "%[1]s".task_type AS t (task_type, paused) VALUES ($1, $2)
  ON CONFLICT (task_type) DO UPDATE SET paused = EXCLUDED.paused WHERE t.paused <> EXCLUDED.paused)
SELECT pg_notify('%[1]s', '')::text`

// Pause keeps all relays, in all processes, from starting tasks of the type: once q's transaction
// has committed, and within the next poll of each relay, which a busy one takes every 50 ms, and an
// idle one has nothing to start. What runs goes on; a batch that has failed and is running one by
// one does, too. Tasks can be enqueued all the same. It holds until Resume, whatever is restarted.
// To pause what is paused, or a type that nobody knows yet, is no error.
//
// q may be a transaction or, as it is one statement, a *sql.DB. It needs SELECT, INSERT and UPDATE
// on outbox.task_type. Of the options only Schema has a meaning here; others are refused with
// ErrInvalidOption, a bad name of a type with ErrInvalidType.
func Pause(ctx context.Context, q Querier, taskType string, opts ...Option) error {
	return pause(ctx, q, taskType, true, opts)
}

// Resume ends a Pause once q's transaction has committed, and wakes the relays, which start with
// what became due meanwhile; those that cannot LISTEN see it at their next poll. Everything else is
// as for [Pause].
func Resume(ctx context.Context, q Querier, taskType string, opts ...Option) error {
	return pause(ctx, q, taskType, false, opts)
}

func pause(ctx context.Context, q Querier, taskType string, paused bool, opts []Option) error {
	what := map[bool]string{true: "pause", false: "resume"}[paused]
	if err := checkType(taskType); err != nil {
		return err
	}
	schema, err := schemaOf(opts)
	if err != nil {
		return err
	}
	if v := reflect.ValueOf(q); q == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return errors.New("outbox: " + what + " " + taskType + ": the Querier is nil")
	}
	var ignored string
	if err := q.QueryRowContext(ctx, fmt.Sprintf(pauseSQL, schema), taskType, paused).Scan(&ignored); err != nil {
		return fmt.Errorf("outbox: %s %s: %w", what, taskType, pgerr.WithoutDSN(err))
	}
	if isPool(q) { // it is committed
		wake.All()
	}
	return nil
}
