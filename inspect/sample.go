package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Sample is what one relay of all noted of a type, once a minute, kept for a day. While no relay runs there is none. Of more than 1,000 types those are noted
// that have most tasks; the sum is of all.
type Sample struct {
	At          time.Time
	Type        string
	Ready       int64
	Scheduled   int64
	Leased      int64
	Waiting     int64
	Dead        int64
	Finished    int64 // since the counters began, as TypeStats says
	Failed      int64
	OldestReady time.Duration
}

const samplesSQL = `/* outbox: inspect samples */
SELECT at, ready, scheduled, leased, waiting, dead, finished, failed, oldest_ready
  FROM outbox.sample WHERE task_type = $1 AND at >= now() - $2::bigint * interval '1 microsecond' ORDER BY at LIMIT 10000`

// Samples returns the samples of the last d, of one type, or of all summed up ("": Type is "" and OldestReady the greatest), the oldest first. d must be
// positive; there are none of more than a day ago.
func Samples(ctx context.Context, q outbox.Querier, taskType string, d time.Duration, opts ...Option) ([]Sample, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	if err := checkType(taskType); err != nil {
		return nil, err
	}
	if d <= 0 {
		return nil, fmt.Errorf("%w: samples of the last %v: must be positive", ErrInvalid, d)
	}
	rows, err := q.QueryContext(ctx, s.sql(samplesSQL), taskType, d.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("inspect: samples: %w", pgerr.WithoutDSN(err))
	}
	defer rows.Close()
	var out []Sample
	for rows.Next() {
		found := Sample{Type: taskType}
		var oldest int64
		if err := rows.Scan(&found.At, &found.Ready, &found.Scheduled, &found.Leased, &found.Waiting, &found.Dead, &found.Finished, &found.Failed, &oldest); err != nil {
			return nil, fmt.Errorf("inspect: samples: %w", err)
		}
		found.OldestReady = time.Duration(oldest) * time.Microsecond
		out = append(out, found)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inspect: samples: %w", pgerr.WithoutDSN(err))
	}
	return out, nil
}
