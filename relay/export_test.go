package relay

import (
	"context"
	"database/sql"
	"log/slog"
	"math"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Statements are the relay's statements on the table of tasks, for the tests of their plans.
var Statements = map[string]string{
	"claim": claimSQL, "claim one": claimOneSQL,
	"poll": pollSQL, "idle poll": idlePollSQL, "take over due": upkeep.TakeOverDueSQL, "last": lastSQL, "promote scheduled": promoteScheduledSQL,
	"take over": upkeep.TakeOverSQL, "expire": upkeep.ExpireSQL, "stranded": upkeep.StrandedSQL, "take stranded": upkeep.TakeStrandedSQL, "stranded leases": strandedLeasesSQL,
	"dead relays": upkeep.DeadRelaysSQL, "unhandled": upkeep.UnhandledSQL, "reap runs": upkeep.ReapRunsSQL, "reap relays": upkeep.ReapRelaysSQL, "sign off": upkeep.SignOffSQL,
	"complete": completeSQL, "return lease": returnLeaseSQL,
	"lock slots": store.LockSlotsSQL, "fill slots": store.FillSlotsSQL,
	"dead lease": deadLeaseSQL, "begin suspect": beginSuspectSQL, "lock back": store.LockBackSQL,
	"key page": upkeep.KeyPageSQL, "lock keys": upkeep.LockKeysSQL, "delete keys": upkeep.DeleteKeysSQL,
	"extend": extendSQL, "hear": hearSQL, "remove canceled": removeCanceledSQL,
	"lease again":       store.LeaseAgainSQL,
	"complete and keep": store.CompleteAndKeepSQL,
	"lock heads":        store.LockHeadsSQL, "promote heads": store.PromoteHeadsSQL,
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
	w := plan.Watermarks{}
	w.NoteClaimed([]plan.ClaimedRun{{Last: plan.Position{TaskID: int64(taskID)}, Tasks: plan.WatermarkAfter}}, 0, time.Now())
	return spanArgs([][]plan.Span{w.Spans()})
}

// NoSpans are arguments of a full poll.
func NoSpans() []any { return spanArgs(nil) }

// FoldSQL moves up to $1 rows from the log of counts.
const FoldSQL = upkeep.FoldSQL

// CheckBloat looks for bloat once, as a relay's maintenance does, with thresholds of the test's.
func (r *Relay) CheckBloat(ctx context.Context, dead int64, snapshot time.Duration) (next time.Duration, err error) {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	return upkeep.Bloat{Dead: dead, Behind: 1, Snapshot: snapshot}.Check(ctx, pg.Schema(r.config.Schema), r.log, tx)
}

// WithMaintenance replaces the jobs of r's maintenance by one, which calls run with a transaction.
func (r *Relay) WithMaintenance(name string, run func(ctx context.Context, tx *sql.Tx) (time.Duration, error)) {
	r.jobs = []upkeep.MaintenanceJob{{Name: name, Run: func(ctx context.Context, _ pg.Schema, _ *slog.Logger, tx *sql.Tx) (time.Duration, error) {
		return run(ctx, tx)
	}}}
}

// WithClaim makes one claim for a type of r's with a statement of the test's in place of the relay's: it has the
// parameters of claimSQL. It returns the error that the dispatcher would get.
func (r *Relay) WithClaim(taskType, query string) error {
	r.runner = r.newRunner(context.Background(), context.Background())
	stopJournal := background(r.journal.Run)
	defer func() { stopJournal(); r.Conns.Release() }()
	for _, h := range r.handlers {
		if h.Type == taskType {
			return r.runTx(context.Background(), h, claimWith(query), func([]*store.Row) {})
		}
	}
	return nil
}

type claimWith string

func (c claimWith) part(h *handlers.Handler, _, _ int) (p claimPart, more bool) {
	return claimPart{query: string(c), args: []any{h.Type, plan.LaneStart.Priority, 0, plan.LaneStart.TaskID, math.MaxInt16, h.BatchSize}, limit: h.BatchSize, text: true}, false
}
