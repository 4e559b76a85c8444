package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// A run that another living relay has in the journal may have lost its connection, which is no
// attempt: it does not count before it is known to have been one.
func TestAnAttemptDoesNotCountARunThatIsUndecided(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Enqueue(t, kind, 1)
			db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('`+someUUID+`', 'h', 1, now() + interval '5 minutes', '{}');
				INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), '`+someUUID+`'
				FROM outbox.task`)
			var calls []int
			reg := handlers.New()
			each(reg, kind, func(_ context.Context, task *outbox.Task[payload]) error {
				calls = append(calls, task.Attempt)
				if len(calls) == 1 {
					return errors.New("failed")
				}
				return nil
			}, retrySoon())
			log := once(t, db, reg, relay.Config{Workers: 1})
			db.Do(t, `UPDATE outbox.running SET lost_connection = true`) // its relay notes it
			log += once(t, db, reg, relay.Config{Workers: 1})
			if fmt.Sprint(calls) != "[1 2]" || !strings.Contains(log, "an attempt failed") {
				t.Errorf("the handler saw the attempts %v, want 1 and 2:\n%s", calls, log)
			}
		})
	}
}
