package measure

import (
	"sync"
	"sync/atomic"
	"time"
)

// Progress counts the tasks of one turn. Its clock starts with the first task that reaches a
// handler, so that connecting and starting up count for no side.
type Progress struct {
	want    int64
	done    atomic.Int64
	slots   [slots]atomic.Int64 // what was done in each slotLength; the last one has all later ones
	first   chan struct{}
	reached chan struct{}
	start   sync.Once
	end     sync.Once
	began   time.Time // set before first is closed
}

const (
	slotLength = 20 * time.Millisecond
	slots      = 20 * 60 * 50 // 20 minutes
)

// NewProgress counts until want tasks are done, and on.
func NewProgress(want int) *Progress {
	return &Progress{want: int64(want), first: make(chan struct{}), reached: make(chan struct{})}
}

// Done counts n tasks more.
func (p *Progress) Done(n int) {
	p.start.Do(func() {
		p.began = time.Now()
		close(p.first)
	})
	p.slots[min(int(time.Since(p.began)/slotLength), slots-1)].Add(int64(n))
	if p.done.Add(int64(n)) >= p.want {
		p.end.Do(func() { close(p.reached) })
	}
}

// Count is how many are done.
func (p *Progress) Count() int { return int(p.done.Load()) }

// First is closed with the first task, Reached with the last that is wanted.
func (p *Progress) First() <-chan struct{}   { return p.first }
func (p *Progress) Reached() <-chan struct{} { return p.reached }

// Elapsed is the time since the first task.
func (p *Progress) Elapsed() time.Duration {
	select {
	case <-p.first:
		return time.Since(p.began)
	default:
		return 0
	}
}

// Windows are the rates, in tasks a second, of each window of the given length, between two moments
// as Elapsed tells them. The last one counts if it is at least a fifth as long as the others, or is
// the only one.
func (p *Progress) Windows(length, from, to time.Duration) []float64 {
	var out []float64
	for ; from < to; from += length {
		end := min(from+length, to)
		if end-from < length/5 && len(out) > 0 {
			break
		}
		out = append(out, (p.until(end)-p.until(from))/(end-from).Seconds())
	}
	return out
}

// until is the count at a moment: of the slot that it is in, a share.
func (p *Progress) until(t time.Duration) (n float64) {
	last := min(int(t/slotLength), slots-1)
	for i := range last {
		n += float64(p.slots[i].Load())
	}
	share := float64(t-time.Duration(last)*slotLength) / float64(slotLength)
	return n + share*float64(p.slots[last].Load())
}
