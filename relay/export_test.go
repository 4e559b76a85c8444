package relay

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/txoutbox/outbox/internal/pg"

	"github.com/txoutbox/outbox/handlers"
)

// Statements are the relay's statements on the table of tasks, for the tests of their plans.
var Statements = map[string]string{
	"claim": claimSQL, "claim one": claimOneSQL,
	"poll": pollSQL, "idle poll": idlePollSQL, "take over due": takeOverDueSQL, "last": lastSQL, "promote scheduled": promoteScheduledSQL,
	"take over": takeOverSQL, "expire": expireSQL, "stranded": strandedSQL, "take stranded": takeStrandedSQL, "stranded leases": strandedLeasesSQL,
	"dead relays": deadRelaysSQL, "unhandled": unhandledSQL, "reap runs": reapRunsSQL, "reap relays": reapRelaysSQL, "sign off": signOffSQL,
	"complete": completeSQL, "return lease": returnLeaseSQL,
	"lock slots": lockSlotsSQL, "fill slots": fillSlotsSQL,
	"dead lease": deadLeaseSQL, "begin suspect": beginSuspectSQL, "lock back": lockBackSQL,
	"key page": keyPageSQL, "lock keys": lockKeysSQL, "delete keys": deleteKeysSQL,
	"extend": extendSQL, "hear": hearSQL, "remove canceled": removeCanceledSQL,
	"lease again":       leaseAgainSQL,
	"complete and keep": completeAndKeepSQL,
	"lock heads":        lockHeadsSQL, "promote heads": promoteHeadsSQL,
}

// TakeTaskSQL is the claim of one task, whose plan is in a function.
const TakeTaskSQL = takeTaskSQL

// Statements that are functions, whose plans are theirs: a lease, and the end of leases.
const (
	LeaseSQL  = leaseSQL
	FinishSQL = finishSQL
)

// SpanArgs are arguments of a poll: of the first type only what follows a task of the ordinary priority, and the other priorities.
func SpanArgs(taskID int) []any {
	w := watermarks{of: map[class]*watermark{{}: {at: pivot{taskID: int64(taskID)}, claimed: watermarkAfter}}}
	return spanArgs([][]span{w.spans()})
}

// NoSpans are arguments of a full poll.
func NoSpans() []any { return spanArgs(nil) }

// FoldSQL moves up to $1 rows from the log of counts.
const (
	FoldSQL          = foldSQL
	PauseScheduleSQL = pauseScheduleSQL
)

// CheckBloat looks for bloat once, as a relay's maintenance does, with thresholds of the test's.
func (r *Relay) CheckBloat(ctx context.Context, dead int64, snapshot time.Duration) (next time.Duration, err error) {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	return bloat{dead, 1, snapshot}.check(ctx, r, tx)
}

// WithMaintenance replaces the jobs of r's maintenance by one, which calls run with a transaction.
func (r *Relay) WithMaintenance(name string, run func(ctx context.Context, tx *sql.Tx) (time.Duration, error)) {
	r.jobs = []maintenanceJob{{name, func(ctx context.Context, _ *Relay, tx *sql.Tx) (time.Duration, error) { return run(ctx, tx) }}}
}

// WithClaim makes one claim for a type of r's with a statement of the test's in place of the relay's: it has the
// parameters of claimSQL. It returns the error that the dispatcher would get.
func (r *Relay) WithClaim(taskType, query string) error {
	r.conns = pg.NewPool(r.db)
	r.id, r.handlerContext, r.journal = newUUID(), context.Background(), newJournal(r)
	stopJournal := background(r.journal.run)
	defer func() { stopJournal(); r.conns.Release() }()
	for _, h := range r.handlers {
		if h.Type == taskType {
			return r.runTx(context.Background(), h, claimWith(query), func([]*row) {})
		}
	}
	return nil
}

type claimWith string

func (c claimWith) part(h *handlers.Handler, _, _ int) (p claimPart, more bool) {
	return claimPart{query: string(c), args: []any{h.Type, laneStart.priority, 0, laneStart.taskID, math.MaxInt16, h.BatchSize}, limit: h.BatchSize, text: true}, false
}

// ReportUnhandled reports types without a handler as a relay does that has made its last report the given time ago.
func (r *Relay) ReportUnhandled(ctx context.Context, ago time.Duration) error {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return (&unhandled{r: r, last: time.Now().Add(-ago)}).report(ctx, conn)
}
