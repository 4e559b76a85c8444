package forward_test

import (
	"context"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// hanging answers for all events but those with the payload 2.
type hanging struct{ *broker }

func (h hanging) Publish(ctx context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if string(e.Data) == `{"n": 2}` {
			<-ctx.Done()
			errs[i] = forward.Unavailable(ctx.Err(), 0)
		} else if answer := h.broker.Publish(ctx, []*forward.Event{e}); answer != nil {
			errs[i] = answer[0]
		}
	}
	return errs
}

// An event that never has an answer becomes a dead letter, though the broker answers for others.
func TestAnEventWithoutAnAnswerIsNoOutage(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	f := forward.Register(reg, placed, hanging{to}, forward.Timeout(50*time.Millisecond),
		forward.Handler(handlers.MaxAttempts(2), relaytest.RetrySoon()))
	enqueue(t, db, 5, nil)
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	forwardtest.NothingLeft(t, db)
	if got := db.Text(t, `SELECT concat(payload ->> 'n', ' ', attempt, ' ', last_error)
		FROM outbox.dead_task`); got != "2 2 context deadline exceeded" {
		t.Errorf("dead letter: %s", got)
	}
	if s := f.Stats(); s.Published != 4 || s.Temporary != 2 || s.Open != 0 {
		t.Errorf("got %+v", s)
	}
}
