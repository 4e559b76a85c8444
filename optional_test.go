package outbox_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// They go together in any way, one by one and in one call.
func TestOptionsThatFewTasksHave(t *testing.T) {
	t.Parallel()
	with := func(opts ...outbox.Option) []outbox.Option { return opts }
	combinations := map[string][]outbox.Option{
		"-|-|false|-|false":       nil,
		"1500|-|false|-|false":    with(outbox.Timeout(1500 * time.Millisecond)),
		"-|k|false|-|false":       with(outbox.OrderedBy("k")),
		"-|k|true|-|false":        with(outbox.OrderedBy("k"), outbox.SkipFailed()),
		"-|-|false|a|false":       with(outbox.Unique("a")),
		"1500|k|false|b|true":     with(outbox.Timeout(1500*time.Millisecond), outbox.OrderedBy("k"), outbox.Unique("b", outbox.UntilDone())),
		"2000|k|true|c|false":     with(outbox.Timeout(2*time.Second), outbox.OrderedBy("k"), outbox.SkipFailed(), outbox.Unique("c"), outbox.OnConflict(outbox.Replace)),
		"2500|-|false|d|false":    with(outbox.Timeout(2500*time.Millisecond), outbox.Unique("d"), outbox.OnConflict(outbox.Reschedule)),
		"3000|it's|false|-|false": with(outbox.Timeout(3*time.Second), outbox.OrderedBy("it's")),
	}
	const columns = `SELECT concat_ws('|', COALESCE(timeout_ms::text, '-'), COALESCE(ordering_key, '-'), skip_failed::text, COALESCE(unique_key, '-'), unique_until_done::text),
		state = CASE WHEN ordering_key IS NULL THEN 'ready' ELSE 'waiting' END FROM outbox.task WHERE task_id = $1`
	onEveryClient(t, []contract{{"one_by_one_and_in_one_call", func(t *testing.T, e *env) {
		tx := e.tx(t)
		check := func(got outbox.Enqueued, want string) {
			t.Helper()
			var columnsOf string
			var inState bool
			if err := tx.QueryRowContext(t.Context(), columns, got.TaskID).Scan(&columnsOf, &inState); err != nil || columnsOf != want || !inState {
				t.Errorf("task %d is %s, %v, %v, want %s", got.TaskID, columnsOf, inState, err, want)
			}
		}
		single, many := newType(), newType()
		var wants []string
		var tasks []outbox.NewTask
		for want, opts := range combinations {
			got := put(t, tx.Querier, single, 1, opts...)
			check(got, want)
			wants, tasks = append(wants, want), append(tasks, outbox.NewTask{Type: many, Payload: 1, Options: opts})
		}
		for range 2 { // the second time those with unique keys are there
			all := putMany(t, tx, tasks...)
			for i, got := range all {
				check(got, wants[i])
			}
		}
		if n := len(rows(t, tx, many)); n != 2*len(tasks)-4 {
			t.Errorf("%d tasks, want %d", n, 2*len(tasks)-4)
		}
	}}})
}
