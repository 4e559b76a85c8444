package relay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/relay"
)

// pollWithoutPause is the poll as it was before types could be paused.
const pollWithoutPause = `
SELECT t.i, h.task_id, h.priority, h.attempt, (LEAST(extract(epoch FROM clock_timestamp() - h.run_at), 3e9) * 1000000)::bigint,
       (LEAST(extract(epoch FROM s.run_at - clock_timestamp()), 3e9) * 1000000)::bigint
  FROM unnest($1::text[]) WITH ORDINALITY AS t (task_type, i)
  LEFT JOIN LATERAL (
    SELECT priority, attempt, task_id, run_at FROM outbox.task
     WHERE state = 'ready' AND task_type = t.task_type AND task_id <> ALL ($2::bigint[])
     ORDER BY priority, attempt, task_id LIMIT 1) h ON true
  LEFT JOIN LATERAL (
    SELECT run_at FROM outbox.task WHERE state = 'scheduled' AND task_type = t.task_type
     ORDER BY run_at LIMIT 1) s ON true
 WHERE h.task_id IS NOT NULL OR s.run_at IS NOT NULL`

// BenchmarkLimitsForOtherTypes prints what types without a limit pay for limits and pauses: a poll and a claim, with the poll of
// before and the present one by turns. Claims of such types are the same statements as before.
//
//	go test ./relay -run '^$' -bench LimitsForOtherTypes -benchtime 2000x
func BenchmarkLimitsForOtherTypes(b *testing.B) {
	for _, types := range []int{3, 20} {
		for _, paused := range []int{0, 10} {
			b.Run(fmt.Sprintf("types=%d/paused=%d", types, paused), func(b *testing.B) {
				db := newDatabase(b)
				names := make([]string, types)
				for i := range names {
					names[i] = fmt.Sprint("TYPE", i)
					db.Enqueue(b, names[i], 2*b.N/types+10)
				}
				for i := range paused {
					pause(b, db, fmt.Sprint("PAUSED", i))
				}
				db.Do(b, `VACUUM ANALYZE outbox.task, outbox.task_type`)
				conn, err := db.Conn(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				poll := map[bool]string{false: pollWithoutPause, true: statements["poll"]}
				drain := func(query string, args ...any) { // as the relay does: planned each time by lib/pq, prepared by pgx
					rows, err := conn.QueryContext(context.Background(), query, args...)
					if err != nil {
						b.Fatal(err)
					}
					for rows.Next() {
					}
					if err := rows.Close(); err != nil {
						b.Fatal(err)
					}
				}
				took := map[bool][]time.Duration{}
				polls := map[bool][]time.Duration{}
				for i := range b.N {
					for _, now := range []bool{i%2 == 0, i%2 != 0} {
						begun := time.Now()
						args := []any{pq.Array(names), pq.Array([]int64{})}
						if now {
							args = append(args, relay.NoSpans()...)
						}
						drain(poll[now], args...)
						polled := time.Now()
						drain(statements["claim"], names[i%types], 0, 0, 0, 0, 1)
						polls[now], took[now] = append(polls[now], polled.Sub(begun)), append(took[now], time.Since(begun))
					}
				}
				median := func(d []time.Duration) float64 {
					slices.Sort(d)
					return float64(d[len(d)/2].Nanoseconds()) / 1000
				}
				b.ReportMetric(median(polls[false]), "µs/poll-before")
				b.ReportMetric(median(polls[true]), "µs/poll")
				b.ReportMetric(median(took[false]), "µs/poll+claim-before")
				b.ReportMetric(median(took[true]), "µs/poll+claim")
				b.ReportMetric(median(took[true])/median(took[false]), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
