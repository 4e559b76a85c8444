package relay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/internal/guard"
)

// Death is a task that became a dead letter. Its payload is in the table: see deadletter.Get.
type Death struct {
	TaskID      int64
	Type        string
	Attempt     int // attempts begun
	MaxAttempts int
	Reason      deadletter.Reason
	Error       string // at most 4 kB
}

// died tells the log and OnDead of a dead letter whose commit is confirmed.
func (r *Relay) died(t *row, c change) {
	d := Death{TaskID: t.id, Type: t.taskType, Attempt: c.attempt, MaxAttempts: t.max, Reason: deadletter.Reason(c.reason), Error: errorText(c.err)}
	r.log.Error("outbox: a task became a dead letter", "task_type", d.Type, "task_id", d.TaskID, "attempt", d.Attempt, "reason", c.reason, "error", d.Error)
	r.deaths.tell(d)
}

const (
	maxDeaths   = 1000 // that wait for their call
	deathCall   = 10 * time.Second
	deathsAtEnd = deathCall // for how long a run waits for the calls at its end
)

// deaths calls Config.OnDead in a goroutine of its own.
type deaths struct {
	r      *Relay
	ctx    context.Context // ends when no further call is made
	stop   context.CancelFunc
	in     chan Death
	ending chan struct{} // closed when no more come; what outlives its run may still tell, and is not heard
	done   chan struct{}
	out    atomic.Int64 // calls left out that are not logged yet
}

// newDeaths returns nil, which does nothing, without a function to call.
func newDeaths(ctx context.Context, r *Relay) *deaths {
	if r.config.OnDead == nil {
		return nil
	}
	d := &deaths{r: r, in: make(chan Death, maxDeaths), ending: make(chan struct{}), done: make(chan struct{})}
	d.ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	go d.run()
	return d
}

// tell has OnDead called, unless too many wait for that.
func (d *deaths) tell(one Death) {
	if d == nil {
		return
	}
	select {
	case d.in <- one:
	default:
		if d.out.Add(1) == 1 {
			d.r.log.Warn("outbox: OnDead is slower than dead letters come; calls are left out", "waiting", maxDeaths)
		}
	}
}

func (d *deaths) run() {
	defer close(d.done)
	for d.ctx.Err() == nil {
		select {
		case one := <-d.in:
			d.call(one)
			continue
		default:
		}
		d.report()
		select {
		case one := <-d.in:
			d.call(one)
		case <-d.ending:
			if len(d.in) == 0 {
				return
			}
		}
	}
}

func (d *deaths) call(one Death) {
	ctx, cancel := context.WithTimeout(d.ctx, deathCall)
	defer cancel()
	if err := guard.Call(func() { d.r.config.OnDead(ctx, one) }); err != nil {
		d.r.log.Error("outbox: OnDead panicked", "task_type", one.Type, "task_id", one.TaskID, "error", errorText(err))
	}
}

// report logs how many calls were left out.
func (d *deaths) report() {
	if n := d.out.Swap(0); n > 0 {
		d.r.log.Warn("outbox: OnDead was not called for some dead letters", "dead_letters", n)
	}
}

// end waits for the calls that are still to be made, up to a bound.
func (d *deaths) end() {
	if d == nil {
		return
	}
	close(d.ending)
	select {
	case <-d.done:
	case <-time.After(deathsAtEnd):
		d.out.Add(int64(len(d.in)))
	}
	d.stop()
	d.report()
}
