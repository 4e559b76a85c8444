package measure

import (
	"sync"
	"sync/atomic"
	"time"
)

// Progress follows the tasks of one turn. Its clock starts with the first task that reaches a
// handler, so that connecting and starting up count for no side.
type Progress struct {
	want    int64
	done    atomic.Int64
	began   atomic.Int64 // Unix nanoseconds; 0 until the first task
	first   chan struct{}
	reached chan struct{}
	once    sync.Once // of reached
	ending  sync.Once
	ticks   []tick
	stop    chan struct{}
	stopped chan struct{}
}

type tick struct {
	at   time.Duration
	done int64
}

const tickEvery = 20 * time.Millisecond

// NewProgress follows until want tasks are done; the caller must call End.
func NewProgress(want int) *Progress {
	p := &Progress{want: int64(want),
		first: make(chan struct{}), reached: make(chan struct{}), stop: make(chan struct{}), stopped: make(chan struct{})}
	go p.follow()
	return p
}

// Done counts n tasks more.
func (p *Progress) Done(n int) {
	if p.began.Load() == 0 && p.began.CompareAndSwap(0, time.Now().UnixNano()) {
		close(p.first)
	}
	if p.done.Add(int64(n)) >= p.want {
		p.once.Do(func() { close(p.reached) })
	}
}

// Count is how many are done.
func (p *Progress) Count() int { return int(p.done.Load()) }

// First is closed with the first task, Reached with the last that is wanted.
func (p *Progress) First() <-chan struct{}   { return p.first }
func (p *Progress) Reached() <-chan struct{} { return p.reached }

// Elapsed is the time since the first task.
func (p *Progress) Elapsed() time.Duration {
	began := p.began.Load()
	if began == 0 {
		return 0
	}
	return time.Since(time.Unix(0, began))
}

func (p *Progress) follow() {
	defer close(p.stopped)
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if p.began.Load() != 0 {
				p.ticks = append(p.ticks, tick{p.Elapsed(), p.done.Load()})
			}
		case <-p.stop:
			return
		}
	}
}

// End ends the following. Windows may be called afterwards. Later calls do nothing.
func (p *Progress) End() {
	p.ending.Do(func() {
		close(p.stop)
		<-p.stopped
		p.ticks = append(p.ticks, tick{p.Elapsed(), p.done.Load()})
	})
}

// Windows are the rates, in tasks a second, of each window of the given length, up to total. The
// last one counts if it is at least a fifth as long as the others, or is the only one.
func (p *Progress) Windows(length, total time.Duration) []float64 {
	return p.Between(length, 0, total)
}

// Between is Windows from a moment to another, as Elapsed tells them.
func (p *Progress) Between(length, from, to time.Duration) []float64 {
	var out []float64
	for ; from < to; from += length {
		end := min(from+length, to)
		if end-from < length/5 && len(out) > 0 {
			break
		}
		out = append(out, (p.at(end)-p.at(from))/(end-from).Seconds())
	}
	return out
}

// at is the count at a moment, between two ticks in proportion.
func (p *Progress) at(t time.Duration) float64 {
	last := tick{}
	for _, k := range p.ticks {
		if k.at >= t {
			if k.at == last.at {
				return float64(k.done)
			}
			share := float64(t-last.at) / float64(k.at-last.at)
			return float64(last.done) + share*float64(k.done-last.done)
		}
		last = k
	}
	return float64(last.done)
}
