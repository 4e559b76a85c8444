package run

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

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
