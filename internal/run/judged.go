package run

import (
	"context"
	"slices"

	"github.com/txoutbox/outbox/internal/store"
)

// judge acts on what earlier runs left. It reports whether that was all; if not, the claim is one or
// more suspects, which may run until a.leaveSuspects is called.
func (a *attempt) judge(ctx context.Context, found map[int64][]store.Earlier) (done bool, err error) {
	if len(a.rows) > 1 {
		return a.judgeBatch(ctx, found)
	}
	r := a.rows[0]
	judged, wait := r.Judge(found[r.ID])
	if judged == store.Suspect {
		if a.leaveSuspects, wait = a.r.enter(r); a.leaveSuspects == nil {
			judged = store.Postponed
		}
	}
	v := verdict{outcome: Dead}
	switch judged {
	case store.Fresh, store.Suspect:
		return false, nil
	case store.Postponed:
		defer a.r.postponed(wait) // from when it is written
		v = verdict{outcome: PutOff, change: store.Change{Attempt: r.Attempt, Wait: wait, Untried: true}}
		for _, e := range found[r.ID] {
			v.change.Keep = append(v.change.Keep, e.Token)
		}
	case store.DeadLostConns:
		v.change = store.Change{Attempt: min(r.Attempt+r.Lost, r.Max), Reason: store.ReasonLostConnections, Err: r.LostText(judged)}
	default:
		v.change = store.Change{Attempt: r.Max, Reason: store.ReasonAttempts, Err: r.LostText(judged)}
	}
	return true, a.close(v)
}

// judgeBatch lets a batch run of which no task has lost more than one run. Else it gives the batch
// back, and the tasks with more of a history run one by one.
func (a *attempt) judgeBatch(ctx context.Context, found map[int64][]store.Earlier) (done bool, err error) {
	var solo, history []int64
	most := a.rows[0]
	for _, r := range a.rows {
		judged, _ := r.Judge(found[r.ID])
		switch {
		case judged == store.Fresh:
			continue
		case judged != store.Suspect, r.Isolation > store.LostOnce, slices.ContainsFunc(found[r.ID], func(e store.Earlier) bool { return e.LostConn }):
			solo = append(solo, r.ID)
		}
		history = append(history, r.ID)
		if r.Isolation > most.Isolation {
			most = r
		}
	}
	if len(solo) == 0 {
		if a.leaveSuspects, _ = a.r.enter(most); a.leaveSuspects != nil {
			return false, nil
		}
		solo = history
	}
	a.solo(a.r.Journal.ForgetRuns(a.runs), solo)
	return true, nil
}

// solo gives a batch back, once the journal has noted what its runs were. Tasks of it run one by
// one next.
func (a *attempt) solo(noted func(), taskIDs []int64) {
	noted()
	a.r.Journal.Close(a.runs)
	a.giveBack()
	a.watch.all(PutOff)
	a.alone = taskIDs
}

// close writes what becomes of a task whose handler is not called, and commits. After an error
// nothing is committed, or, if it is the commit's, perhaps.
func (a *attempt) close(v verdict) error {
	verdicts := []verdict{v}
	if _, err := a.reject(verdicts); err != nil {
		a.abort()
		a.r.Journal.ForgetRuns(a.runs)
		return err
	}
	err := a.commit(verdicts)
	if err != nil {
		a.r.Journal.ForgetRuns(a.runs)
	}
	return err
}

// giveBackRuns ends a claim that is to be as if it had not been.
func (a *attempt) giveBackRuns() {
	a.r.Journal.ForgetRuns(a.runs)()
	a.abort()
}
