package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/wake"
)

// dueSQL locks the schedule that has been due for longest.
const dueSQL = `/* outbox: lock a schedule that is due */
SELECT s.name, (extract(epoch FROM s.next_at) * 1000000)::bigint, (extract(epoch FROM now()) * 1000000)::bigint,
       s.paused,
       set_config('idle_in_transaction_session_timeout', $3, true), set_config('lock_timeout', $3, true)
  FROM outbox.schedule s JOIN unnest($1::text[], $2::text[]) AS k (name, definition)
    ON s.name = k.name AND s.definition = k.definition
 WHERE s.next_at <= now()
 ORDER BY s.next_at LIMIT 1 FOR UPDATE OF s SKIP LOCKED`

// firedSQL sets the next firing.
const firedSQL = `/* outbox: set the next firing */
UPDATE outbox.schedule SET next_at = timestamptz 'epoch' + $2::bigint * interval '1 microsecond',
       last_at = COALESCE(timestamptz 'epoch' + $3::bigint * interval '1 microsecond', last_at)
 WHERE name = $1`

// fireOne fires a schedule that is due, if any but those that have fired is: the row is locked, the
// tasks are enqueued and the next firing is set in one transaction. It returns the schedule's name,
// also with the error of what it is to enqueue.
func (s *Scheduler) fireOne(ctx context.Context, fired map[string]bool) (name string, err error) {
	names, definitions := s.keys(fired)
	if len(names) == 0 {
		return "", nil
	}
	var f firings
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var due, now int64
		var paused bool
		args := []any{pq.Array(names), pq.Array(definitions), pg.Millis(pg.Bookkeeping)}
		err := tx.QueryRowContext(ctx, s.Schema.SQL(dueSQL), args...).
			Scan(&name, &due, &now, &paused, new(string), new(string))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		one := s.of(name)
		if f, err = one.firings(time.UnixMicro(due).UTC(), time.UnixMicro(now).UTC(), paused); err != nil {
			return err
		}
		if _, err := outbox.EnqueueMany(ctx, tx, one.tasks(f.at, s.Schema)); err != nil {
			return err
		}
		var last time.Time
		if len(f.at) > 0 {
			last = f.at[len(f.at)-1]
		}
		return pg.One(tx.ExecContext(ctx, s.Schema.SQL(firedSQL), name, micros(f.next), micros(last)))
	})
	if err != nil {
		return name, err
	}
	if len(f.at) > 0 {
		wake.All()
	}
	if f.why != nil {
		s.ended(name, f.why)
	}
	return name, nil
}

// tasks are what firings enqueue.
func (s *Schedule) tasks(at []time.Time, schema pg.Schema) []outbox.TaskSpec {
	out := make([]outbox.TaskSpec, len(at))
	for i, t := range at {
		options := append(slices.Clone(s.Task.Options), outbox.RunAt(t), outbox.Schema(string(schema)))
		out[i] = outbox.TaskSpec{Type: s.Task.Type, Payload: json.RawMessage(s.payload), Options: options}
	}
	return out
}

// micros is a time as the statements take it: microseconds since 1970, or NULL for none.
func micros(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}
