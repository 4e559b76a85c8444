package relay

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// DeadLetter is a task that became a dead letter. Its payload is in the table: see
// admin.Client.Payload.
type DeadLetter struct {
	ID          int64
	Key         string // outbox.Task.Key
	Type        string
	Attempt     int // attempts begun
	MaxAttempts int
	Reason      outbox.Reason
	LastError   string // the text of Err, at most 4 kB
	Err         error  // for errors.Is and errors.As: the handler's, or the relay's; see handlers.PanicError
}

const (
	maxDeadLetters   = 1000 // that wait for their call
	deadLetterCall   = 10 * time.Second
	deadLettersAtEnd = deadLetterCall // for how long a run waits for the calls at its end
)

// deadLetters calls Config.OnDead in a goroutine of its own.
type deadLetters struct {
	onDead func(context.Context, DeadLetter)
	log    *slog.Logger
	ctx    context.Context // ends when no further call is made
	stop   context.CancelFunc
	in     chan DeadLetter
	ending chan struct{} // closed when no more come; what outlives its run may still tell, and is not heard
	done   chan struct{}
	out    atomic.Int64 // calls left out that are not logged yet
}

// newDeadLetters returns nil, which does nothing, without a function to call.
func newDeadLetters(ctx context.Context, onDead func(context.Context, DeadLetter), log *slog.Logger) *deadLetters {
	if onDead == nil {
		return nil
	}
	d := &deadLetters{onDead: onDead, log: log, in: make(chan DeadLetter, maxDeadLetters), ending: make(chan struct{}), done: make(chan struct{})}
	d.ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	go d.run()
	return d
}

// tell has OnDead called, unless too many wait for that.
func (d *deadLetters) tell(one DeadLetter) {
	if d == nil {
		return
	}
	select {
	case d.in <- one:
	default:
		if d.out.Add(1) == 1 {
			d.log.Warn("outbox: OnDead is slower than dead letters come; calls are left out", "waiting", maxDeadLetters)
		}
	}
}

func (d *deadLetters) run() {
	defer close(d.done)
	for d.ctx.Err() == nil {
		if len(d.in) == 0 {
			d.report()
		}
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

func (d *deadLetters) call(one DeadLetter) {
	ctx, cancel := context.WithTimeout(d.ctx, deadLetterCall)
	defer cancel()
	if err := guard.Call(func() { d.onDead(ctx, one) }); err != nil {
		d.log.Error("outbox: OnDead panicked", "task_type", one.Type, "task_id", one.ID, pgerr.LogAttr(err))
	}
}

// report logs how many calls were left out.
func (d *deadLetters) report() {
	if n := d.out.Swap(0); n > 0 {
		d.log.Warn("outbox: OnDead was not called for some dead letters", "dead_letters", n)
	}
}

// end waits for the calls that are still to be made, up to a bound.
func (d *deadLetters) end() {
	if d == nil {
		return
	}
	close(d.ending)
	select {
	case <-d.done:
	case <-time.After(deadLettersAtEnd):
		d.out.Add(int64(len(d.in)))
	}
	d.stop()
	d.report()
}
