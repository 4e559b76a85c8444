package run

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// Start starts the handlers of what one claim took.
func (l *Leases) Start(runs []*LeasedRun) {
	l.starting.Add(int64(len(runs)))
	var suspects []*LeasedRun
	for _, x := range runs {
		x.leases, x.r = l, l.r
		if x.row.LostBy.Valid {
			suspects = append(suspects, x)
		}
	}
	if len(suspects) == 0 {
		start(runs)
		return
	}
	go l.startSuspects(suspects)
	start(slices.DeleteFunc(slices.Clone(runs), func(x *LeasedRun) bool { return x.row.LostBy.Valid }))
}

const BeginSuspectsSQL = `/* outbox: count the attempts of suspects */
UPDATE outbox.task SET attempt = LEAST(attempt + 1, 32767) WHERE task_id = ANY ($1::bigint[]) AND lease_token = $2::uuid
RETURNING task_id::text`

// startSuspects counts the attempts of tasks whose process died, and starts those that may run
// beside the others of their kind.
func (l *Leases) startSuspects(runs []*LeasedRun) {
	var enter []*LeasedRun
	var ids []int64
	for _, x := range runs {
		t := &x.row
		if t.JudgeLeased() {
			if x.leaveSuspects, x.putOff = l.r.enter(t); x.leaveSuspects == nil {
				x.next.lostBy = t.LostBy
				x.endBefore(verdict{outcome: PutOff, change: store.Change{Attempt: t.Attempt, Wait: x.putOff}})
				continue
			}
			ids = append(ids, t.ID)
		}
		enter = append(enter, x)
	}
	counted := l.countSuspects(ids, runs[0].token)
	begin := enter[:0]
	for _, x := range enter {
		if t := &x.row; x.leaveSuspects != nil && !counted[strconv.FormatInt(t.ID, 10)] {
			x.endBefore(verdict{back: true, change: store.Change{Attempt: t.Attempt}})
			continue
		}
		x.row.Attempt++
		begin = append(begin, x)
	}
	start(begin)
}

// countSuspects counts attempts of a claim, and returns of which tasks: the others' leases are lost.
// After an error it returns none, and they may be counted or not.
func (l *Leases) countSuspects(ids []int64, token string) map[string]bool {
	if len(ids) == 0 {
		return nil
	}
	var found []string
	err := l.r.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
		found, err = pg.Texts(tx.QueryContext(ctx, l.r.SQL(BeginSuspectsSQL), store.BigintArray(ids), token))
		return err
	})
	if err != nil {
		return nil
	}
	counted := make(map[string]bool, len(found))
	for _, id := range found {
		counted[id] = true
	}
	return counted
}

// endBefore ends a run whose handler is not called.
func (x *LeasedRun) endBefore(v verdict) {
	x.leases.starting.Add(-1)
	x.watch = newWatch(x.r.Events, x.h, []*store.Row{&x.row}, x.claim.Ended)
	x.end(v)
}

func start(runs []*LeasedRun) {
	s := &starts{runs: make(chan *LeasedRun, len(runs))}
	for _, x := range runs {
		s.runs <- x
	}
	close(s.runs)
	s.ensure()
}

// starts are runs of a claim that are about to begin. A goroutine takes one after the other, and
// before it calls a handler it sees to it that there is another goroutine for the rest: so short
// runs need few goroutines, and none waits for a handler that takes its time.
type starts struct {
	runs  chan *LeasedRun // closed
	spare atomic.Bool     // a goroutine was started that has not taken a run yet
}

func (s *starts) ensure() {
	if len(s.runs) > 0 && s.spare.CompareAndSwap(false, true) {
		go s.work()
	}
}

func (s *starts) work() {
	x, more := <-s.runs
	s.spare.Store(false)
	for ; more; x, more = <-s.runs {
		s.ensure()
		x.begin()
	}
}
