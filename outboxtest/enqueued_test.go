package outboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/schema"
)

var send = outbox.NewTaskType[payload]("SEND")

func even(p payload) bool { return p.N%2 == 0 }

func ids[P any](tasks []*outbox.Task[P]) (out []int64) {
	for _, t := range tasks {
		out = append(out, t.ID)
	}
	return out
}

func TestWhatIsEnqueuedIsFoundByPayloadAndOptions(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx := begin(t, db)
		at := time.Date(2031, 2, 3, 4, 5, 6, 789012345, time.FixedZone("", 3600))
		put := func(n int, opts ...outbox.Option) int64 {
			t.Helper()
			e, err := send.Enqueue(t.Context(), tx, payload{n}, opts...)
			relaytest.Must(err)
			return e.ID
		}
		one := put(1, outbox.Priority(3), outbox.MaxAttempts(4), outbox.Headers(map[string]string{"trace": "abc"}))
		two := put(2, outbox.RunAt(at))
		three := put(3, outbox.After(time.Hour))
		enqueue(t, tx, "OTHER", 2)

		for name, c := range map[string]struct {
			match func(payload) bool
			want  []outboxtest.Want
			found []int64
		}{
			"any":          {nil, nil, []int64{one, two, three}},
			"by payload":   {even, nil, []int64{two}},
			"none":         {func(p payload) bool { return p.N == 9 }, nil, nil},
			"priority":     {nil, []outboxtest.Want{outboxtest.Priority(3)}, []int64{one}},
			"priority 0":   {nil, []outboxtest.Want{outboxtest.Priority(0)}, []int64{two, three}},
			"max attempts": {nil, []outboxtest.Want{outboxtest.MaxAttempts(4)}, []int64{one}},
			"handler's":    {nil, []outboxtest.Want{outboxtest.MaxAttempts(0)}, []int64{two, three}},
			"header":       {nil, []outboxtest.Want{outboxtest.Header("trace", "abc")}, []int64{one}},
			"other header": {nil, []outboxtest.Want{outboxtest.Header("trace", "abd")}, nil},
			"run at":       {nil, []outboxtest.Want{outboxtest.RunAt(at)}, []int64{two}},
			"not run at":   {nil, []outboxtest.Want{outboxtest.RunAt(at.Add(time.Microsecond))}, nil},
			"after":        {nil, []outboxtest.Want{outboxtest.After(time.Hour)}, []int64{three}},
			"not after":    {nil, []outboxtest.Want{outboxtest.After(50 * time.Minute)}, nil},
			"all of it": {even, []outboxtest.Want{outboxtest.Priority(0), outboxtest.RunAt(at), outboxtest.Schema("outbox")},
				[]int64{two}},
			"not all": {even, []outboxtest.Want{outboxtest.Priority(3), outboxtest.RunAt(at)}, nil},
		} {
			if got := ids(outboxtest.Enqueued(t, tx, send, c.match, c.want...)); !slices.Equal(got, c.found) {
				t.Errorf("%s: Enqueued gives %v, want %v", name, got, c.found)
			}
			n := len(c.found)
			for what, tt := range map[string]struct {
				fails bool
				f     func(t testing.TB)
			}{
				"RequireEnqueued": {n == 0, func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, send, c.match, c.want...) }},
				"RequireEnqueuedN": {false,
					func(t testing.TB) { outboxtest.RequireEnqueuedN(t, tx, n, send, c.match, c.want...) }},
				"… with one more": {true,
					func(t testing.TB) { outboxtest.RequireEnqueuedN(t, tx, n+1, send, c.match, c.want...) }},
				"RequireNotEnqueued": {n > 0,
					func(t testing.TB) { outboxtest.RequireNotEnqueued(t, tx, send, c.match, c.want...) }},
			} {
				if failing(t, tt.f).failed != tt.fails {
					t.Errorf("%s: %s failed: %t", name, what, !tt.fails)
				}
			}
		}

		task := outboxtest.RequireEnqueued(t, tx, send, nil, outboxtest.Priority(3))[0]
		if task.Type != "SEND" || task.Payload.N != 1 || task.Priority != 3 || task.MaxAttempts != 4 || task.Attempt != 0 ||
			task.Headers["trace"] != "abc" || task.CreatedAt.IsZero() {
			t.Errorf("the task is %+v", task)
		}
		if n := len(outboxtest.Enqueued(t, db, send, nil)); n != 0 {
			t.Errorf("%d tasks of an open transaction are seen from outside", n)
		}
	})
}

func TestAFailureListsWhatIsEnqueuedAndWhyItIsNotAsWanted(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx := begin(t, db)
		empty := failing(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, send, nil) })
		wantFatal(t, empty, "no task SEND is enqueued\n", "none of this type, and no other task")
		if strings.Contains(empty.fatal, "has not committed") {
			t.Error("a transaction needs no hint about transactions")
		}
		enqueue(t, tx, "OTHER", 1, 2)
		enqueue(t, tx, "ANOTHER", 1)
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.RequireEnqueued(t, tx, send, nil)
		}), "enqueued is: ANOTHER × 1, OTHER × 2")
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.RequireEnqueued(t, db, send, nil)
		}), "no other task", "a transaction has not committed")

		enqueue(t, tx, "SEND", 1, 3)
		exec(t, tx, `UPDATE outbox.task SET last_error = 'no luck', attempt = 2 WHERE task_type = 'SEND'
			AND payload->>'N' = '3'`)
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.RequireEnqueued(t, tx, send, even, outboxtest.Priority(5), outboxtest.MaxAttempts(2),
				outboxtest.Header("a", "b"),
				outboxtest.RunAt(time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)), outboxtest.After(time.Hour))
		}), "no task SEND is enqueued as wanted", "all of this type, 2:", `ready, run_at 20`, `priority 0, attempt 0: {"N": 1}`, `attempt 2: {"N": 3}`, "last error: no luck",
			"match says no; priority 0, want 5; max_attempts 0, want 2; no header \"a\", want \"b\"; run_at", "want 2031-02-03 04:05:06Z", "run_at 0s after created_at, want 1h0m0s")
		wantFatal(t, failing(t, func(t testing.TB) { outboxtest.RequireEnqueuedN(t, tx, 1, send, nil) }),
			"2 tasks SEND are enqueued, want 1", `{"N": 3}`)
		wantFatal(t, failing(t, func(t testing.TB) { outboxtest.RequireNotEnqueued(t, tx, send, nil) }),
			"2 tasks SEND are enqueued, want 0", `{"N": 3}`)

		exec(t, tx, `INSERT INTO outbox.task (task_type, payload) SELECT 'SEND', jsonb_build_object('N', 5, 'long',
			repeat('x', 600)) FROM generate_series(1, 30)`)
		many := failing(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, send, even) })
		wantFatal(t, many, "all of this type, 32:", "… and 12 more", "xxx…")
		if len(many.fatal) > 20*700 {
			t.Errorf("the failure has %d bytes", len(many.fatal))
		}
		exec(t, tx, `INSERT INTO outbox.task (task_type, payload) VALUES ('SEND', '{"N": "three"}')`)
		for _, f := range []func(t testing.TB){
			func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, send, nil) },
			func(t testing.TB) { outboxtest.Enqueued(t, tx, send, nil) },
		} {
			wantFatal(t, failing(t, f), "the payload of task", "does not decode into outboxtest_test.payload")
		}
	})
}

func TestTheSchemaMayHaveAnotherName(t *testing.T) {
	t.Parallel()
	db := newDB(t, "postgres", schema.Schema("tasks"))
	for _, in := range []outbox.Querier{begin(t, db), db} { // in this order: the transaction would see what db commits
		name := fmt.Sprintf("%T", in)
		exec(t, in, `INSERT INTO tasks.task (task_type, payload) VALUES ('SEND', '{"N": 4}')`)
		if got := outboxtest.RequireEnqueuedN(t, in, 1, send, even, outboxtest.Schema("tasks"))[0].Payload.N; got != 4 {
			t.Errorf("%s: the payload is %d, want 4", name, got)
		}
		reg := handlers.New()
		onTx(reg, "TX", returns(errBoom), handlers.MaxAttempts(2))
		onLeased(reg, "LEASED", func(ctx context.Context, task *outbox.Task[payload]) error {
			return task.Complete(ctx, func(*sql.Tx) error { return nil })
		})
		exec(t, in, `INSERT INTO tasks.task (task_type, run_at) VALUES ('TX', now()), ('LEASED', now() + interval '1 hour')`)
		r := outboxtest.Drain(t, in, reg, outboxtest.Schema("tasks"), outboxtest.RetryNow(), outboxtest.Advance(2*time.Hour))
		wantRuns(t, "TX 1 failed, TX 2 dead, LEASED 1 done", r)
		if r.Unhandled["SEND"] != 1 {
			t.Errorf("%s: unhandled are %v, want one SEND", name, r.Unhandled)
		}
	}
}
