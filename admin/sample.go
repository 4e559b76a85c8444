package admin

import (
	"cmp"
	"context"
	"time"
)

// Sample has the counts of a type at one minute of the last day. One of the relays takes it; without a
// relay there is none. Of more than 1,000 types only those with most tasks have samples; the sum is
// of all.
//
// Experimental: a minor version may change it.
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

// SampleQuery selects samples. The zero value means those of all types for a day.
//
// Experimental: a minor version may change it.
type SampleQuery struct {
	Type string        // "": all types summed up; OldestReady is the greatest
	Last time.Duration // until now; 0: a day, which is all there is
}

// Samples returns the samples of a type, the oldest first.
//
// Experimental: a minor version may change it.
func (c *Client) Samples(ctx context.Context, q SampleQuery) ([]Sample, error) {
	if err := checkText("SampleQuery.Type", q.Type); err != nil {
		return nil, err
	}
	if q.Last < 0 {
		return nil, invalid("SampleQuery.Last: %v: must not be negative", q.Last)
	}
	last := cmp.Or(q.Last, 24*time.Hour)
	return list(ctx, c, "samples", samplesSQL, []any{q.Type, last.Microseconds()}, func(row scanner, s *Sample) error {
		var oldest int64
		err := row.Scan(&s.At, &s.Ready, &s.Scheduled, &s.Leased, &s.Waiting, &s.Dead, &s.Finished, &s.Failed, &oldest)
		s.Type, s.OldestReady = q.Type, time.Duration(oldest)*time.Microsecond
		return err
	})
}
