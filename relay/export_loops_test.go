package relay

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Loops are what a relay does at times of its own, each to be done when a test says: a pass is what one iteration of its loop does, with
// the loop's own dealing with errors.
type Loops struct {
	r   *Relay
	now time.Time // of the heartbeat
}

// Loops returns those of a relay that does not run and has never done any of it. Of its maintenance it does the one job, if any.
func (r *Relay) Loops(only string) *Loops {
	l := &Loops{r: r, now: time.Now()}
	r.runner, r.born = r.newRunner(context.Background(), context.Background()), time.Now().Add(-time.Hour)
	for _, j := range upkeep.MaintenanceJobs(r.config.DeadRetention) {
		if j.Name == only {
			r.jobs = []upkeep.MaintenanceJob{j}
		}
	}
	r.rates, r.listener = newRates(&r.runner.Store, r.handlers), &pg.Listener{}
	r.heart = r.newHeartbeat(func() time.Time { return l.now })
	for range 5 { // so that it takes over from others
		if err := r.heart.Beat(context.Background()); err != nil {
			panic(err)
		}
		l.now = l.now.Add(upkeep.Interval)
	}
	return l
}

// Close gives all connections back.
func (l *Loops) Close() {
	l.r.heart.Close()
	l.r.journal.CloseConnection()
	l.r.runner.Conns.Close()
}

// Beat is one heartbeat.
func (l *Loops) Beat(ctx context.Context) error { return l.r.heart.Beat(ctx) }

// SignOff is the end of the heartbeat of a relay that has beaten.
func (l *Loops) SignOff(context.Context) error {
	l.r.heart.SignOff()
	return nil
}

// Upkeep does one of the heartbeat's jobs. The error is that of a lost connection, as for the
// heartbeat; rest is for how long the job waits. A job of maintenance has waited for 10 s, not longer.
func (l *Loops) Upkeep(ctx context.Context, name string) (rest time.Duration, err error) {
	if name == "maintain" {
		l.now = l.now.Add(10*time.Second + time.Millisecond)
	}
	return l.r.heart.Do(ctx, name)
}

// Poll is one poll.
func (l *Loops) Poll(ctx context.Context) error {
	_, err := l.r.newPoller().poll(ctx, pollOptions{})
	return err
}

// Schedule adds the schedules and fires them.
func (l *Loops) Schedule(ctx context.Context) error { return l.r.newScheduler().Once(ctx) }

// Take takes tokens of the rate of the relay's first type.
func (l *Loops) Take(ctx context.Context, n int) (got int, err error) {
	got, _, err = l.r.rates.take(ctx, l.r.handlers[0], n)
	return got, err
}

// Unused makes tokens the relay's that are too old to be used.
func (l *Loops) Unused(n int) {
	l.r.rates.unused(l.r.handlers[0], n)
	l.r.rates[l.r.handlers[0].Type].taken = time.Time{}
}

// Note lets the journal forget a run, and mark another one as lost.
func (l *Loops) Note(forget, mark int64, token string) {
	l.r.journal.ForgetRuns(&store.Runs{IDs: []int64{forget}, Token: token})
	l.r.journal.MarkLost(&store.Runs{IDs: []int64{mark}, Token: token})
}

// WriteNotes writes what the journal has to note.
func (l *Loops) WriteNotes(ctx context.Context) error { return l.r.journal.WriteNotes(ctx, true) }

// HealthWithoutHeartbeat is the Health of a relay that runs, and a beat that comes through.
func HealthWithoutHeartbeat() (health func() error, beat func()) {
	r := &Relay{born: time.Now()}
	var end time.Time
	r.life = &life{claiming: context.Background(), leaseEnd: func() time.Time { return end }}
	return r.Health, func() { end = time.Now().Add(upkeep.LeaseDuration) }
}

// Record journals a run of a task.
func (l *Loops) Record(ctx context.Context, taskID int64) error {
	one := store.NewRuns([]*store.Row{{ID: taskID}}, "")
	recorded := l.r.journal.Record(one)
	l.r.journal.WriteWaiting(ctx)
	_, err := recorded()
	return err
}
