package admin

import (
	"context"
	"time"
)

// Sample has the counts of a type at one minute of the last day. One of the relays takes it; without a
// relay there is none. Of more than 1,000 types only those with most tasks have samples; the sum is
// of all.
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
  FROM outbox.sample
 WHERE task_type = $1 AND at >= now() - $2::bigint * interval '1 microsecond' ORDER BY at LIMIT 10000`

// Samples returns the samples of the last d, of one type, or of all summed up ("": Type is "" and
// OldestReady the greatest), the oldest first. d must be positive; there are none of more than a
// day ago.
func (c *Client) Samples(ctx context.Context, taskType string, d time.Duration) ([]Sample, error) {
	if err := checkText("task type", taskType); err != nil {
		return nil, err
	}
	if d <= 0 {
		return nil, invalid("samples of the last %v: must be positive", d)
	}
	return list(ctx, c, "samples", samplesSQL, []any{taskType, d.Microseconds()}, func(row scanner, s *Sample) error {
		var oldest int64
		err := row.Scan(&s.At, &s.Ready, &s.Scheduled, &s.Leased, &s.Waiting, &s.Dead, &s.Finished, &s.Failed, &oldest)
		s.Type, s.OldestReady = taskType, time.Duration(oldest)*time.Microsecond
		return err
	})
}
