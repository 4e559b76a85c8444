package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// The latest firing counts as well, so that a server's clock that was set back does not repeat one.
const fromSQL = `/* outbox: from when a schedule is computed */
SELECT (extract(epoch FROM GREATEST(now(), (SELECT last_at FROM outbox.schedule WHERE name = $1))) * 1000000)::bigint`

// addSQL adds a schedule, or changes it to what it is here.
const addSQL = `/* outbox: add or change a schedule */
INSERT INTO outbox.schedule AS s (name, next_at, catch_up, task_type, payload, spec, timing, definition)
VALUES ($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3, $4, $5::jsonb, $6, $7, $8)
ON CONFLICT (name) DO UPDATE SET catch_up = EXCLUDED.catch_up, task_type = EXCLUDED.task_type, payload = EXCLUDED.payload,
       spec = EXCLUDED.spec, timing = EXCLUDED.timing, definition = EXCLUDED.definition,
       next_at = CASE WHEN s.timing = EXCLUDED.timing THEN COALESCE(s.next_at, EXCLUDED.next_at) ELSE EXCLUDED.next_at END
 WHERE s.definition <> EXCLUDED.definition OR s.next_at IS NULL AND EXCLUDED.next_at IS NOT NULL`

// register adds this relay's schedules, or changes them to what they are here. Others' stay. One whose Next panics rests first.
func (s *Scheduler) register(ctx context.Context) error {
	for i := range s.Schedules {
		one := &s.Schedules[i]
		if s.registered[one.Name] || s.rests.resting(one.Name) {
			continue
		}
		switch err := s.add(ctx, one); {
		case errors.Is(err, errNextPanicked):
			s.rest(one.Name, err)
		case err != nil:
			return fmt.Errorf("relay: add the schedule %q: %w", one.Name, err)
		default:
			s.registered[one.Name] = true
		}
	}
	return nil
}

func (s *Scheduler) add(ctx context.Context, one *Schedule) error {
	return s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var from int64
		if err := tx.QueryRowContext(ctx, s.Schema.SQL(fromSQL), one.Name).Scan(&from); err != nil {
			return err
		}
		f, err := one.first(time.UnixMicro(from).UTC())
		if err != nil {
			return err
		}
		if f.why != nil {
			s.ended(one.Name, f.why)
		}
		_, err = tx.ExecContext(ctx, s.Schema.SQL(addSQL), one.Name, micros(f.next), one.catchUp(), one.Task.Type, one.payload,
			one.Spec, one.timing, one.definition)
		return err
	})
}
