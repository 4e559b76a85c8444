package outboxtest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

// Tests see payloads and headers as handlers do. What the task type's codecs do not know fails the test.
func TestEncodedTasksAreFoundAndRunAsTheirHandlersSeeThem(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		in := begin(t, db)
		coded := outbox.NewTaskType[payload]("CODED", outbox.Codec(relaytest.Hidden("c"), relaytest.Hidden("old")))
		header := outbox.Headers(map[string]string{"h": "1"})
		for i, opt := range []outbox.Option{outbox.Priority(0), outbox.Codec(relaytest.Hidden("old")), header} {
			if _, err := coded.Enqueue(t.Context(), in, payload{i}, opt); err != nil {
				t.Fatal(err)
			}
		}
		enqueue(t, in, "CODED", 3)
		found := outboxtest.RequireEnqueuedN(t, in, 4, coded, nil)
		for i, task := range found {
			if task.Payload.N != i || (i == 2) != (task.Headers["h"] == "1") || i != 2 && task.Headers != nil {
				t.Errorf("task %d: %+v, headers %v", i, task.Payload, task.Headers)
			}
		}
		ran := 0
		reg := handlers.New()
		handlers.Leased(reg, coded, func(ctx context.Context, task *outbox.Task[payload]) error {
			if task.Payload.N < 10 {
				again := handlers.RunAgainWith(task, 0, payload{task.Payload.N + 10})
				return task.Complete(ctx, func(*sql.Tx) error { return again })
			}
			ran += task.Payload.N
			return nil
		})
		if r := outboxtest.Drain(t, in, reg); r.Count(relay.OutcomeDone) != 4 || ran != 46 {
			t.Errorf("the payloads add up to %d: %v", ran, r)
		}

		if _, err := coded.Enqueue(t.Context(), in, payload{1}, outbox.Codec(relaytest.Hidden("secret"))); err != nil {
			t.Fatal(err)
		}
		wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Enqueued(t, in, coded, nil) }),
			`the payload is encoded by the codec "secret", which is not given here`)
	})
}
