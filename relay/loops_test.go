package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/relay"
)

// loops are what a relay does at times of its own, each to be done when a test says: a pass is what
// one iteration of its loop does, with the loop's own dealing with errors.
type loops struct {
	relay.Parts
	now time.Time // of the heartbeat
}

// newLoops returns those of a relay that does not run and has never done any of it. Of its
// maintenance it does the one job, if any.
func newLoops(r *relay.Relay, only string) *loops {
	l := &loops{now: time.Now()}
	l.Parts = r.Parts(func() time.Time { return l.now }, only)
	for range 5 { // so that it takes over from others
		if err := l.Beat(context.Background()); err != nil {
			panic(err)
		}
		l.now = l.now.Add(upkeep.Interval)
	}
	return l
}

// Close gives all connections back.
func (l *loops) Close() {
	l.Heart.Close()
	l.Journal.CloseConnection()
	l.Conns.Close()
}

// Beat is one heartbeat.
func (l *loops) Beat(ctx context.Context) error { return l.Heart.Beat(ctx) }

// SignOff is the end of the heartbeat of a relay that has beaten.
func (l *loops) SignOff(context.Context) error {
	l.Heart.SignOff()
	return nil
}

// Upkeep does one of the heartbeat's jobs. The error is that of a lost connection, as for the
// heartbeat; rest is for how long the job waits. A job of maintenance has waited for 10 s, not longer.
func (l *loops) Upkeep(ctx context.Context, name string) (rest time.Duration, err error) {
	if name == "maintain" {
		l.now = l.now.Add(10*time.Second + time.Millisecond)
	}
	return l.Heart.Do(ctx, name)
}

// done is Upkeep, again while a busy machine ends it by its own time limit.
func (l *loops) done(t *testing.T, name string) (rest time.Duration) {
	t.Helper()
	rest, err := l.Upkeep(t.Context(), name)
	for try := 0; errors.Is(err, context.DeadlineExceeded) && try < 20; try++ {
		rest, err = l.Upkeep(t.Context(), name)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return rest
}

// PollOnce is one poll.
func (l *loops) PollOnce(ctx context.Context) error { return l.Poll(ctx) }

// Fire adds the schedules and fires them.
func (l *loops) Fire(ctx context.Context) error { return l.Schedule(ctx) }

// Note lets the journal forget a run, and mark another one as lost.
func (l *loops) Note(forget, mark int64, token string) {
	l.Journal.ForgetRuns(&store.Runs{IDs: []int64{forget}, Token: token})
	l.Journal.MarkLost(&store.Runs{IDs: []int64{mark}, Token: token})
}

// WriteNotes writes what the journal has to note.
func (l *loops) WriteNotes(ctx context.Context) error { return l.Journal.WriteNotes(ctx, true) }

// Record journals a run of a task.
func (l *loops) Record(ctx context.Context, taskID int64) error {
	one := store.NewRuns([]*store.Row{{ID: taskID}}, "")
	recorded := l.Journal.Record(one)
	l.Journal.WriteWaiting(ctx)
	_, err := recorded()
	return err
}
