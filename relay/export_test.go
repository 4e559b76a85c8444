package relay

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/run"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Statements are the relay's statements on the table of tasks, for the tests of their plans.
var Statements = map[string]string{
	"claim": run.ClaimSQL, "claim one": run.ClaimOneSQL,
	"poll": pollSQL, "idle poll": idlePollSQL, "take over due": upkeep.TakeOverDueSQL, "last": lastSQL, "promote scheduled": promoteScheduledSQL,
	"take over": upkeep.TakeOverSQL, "expire": upkeep.ExpireSQL, "stranded": upkeep.StrandedSQL, "take stranded": upkeep.TakeStrandedSQL, "stranded leases": strandedLeasesSQL,
	"dead relays": upkeep.DeadRelaysSQL, "unhandled": upkeep.UnhandledSQL, "reap runs": upkeep.ReapRunsSQL, "reap relays": upkeep.ReapRelaysSQL, "sign off": upkeep.SignOffSQL,
	"complete": run.CompleteSQL, "return lease": run.ReturnLeaseSQL,
	"lock slots": store.LockSlotsSQL, "fill slots": store.FillSlotsSQL,
	"dead lease": run.DeadLeaseSQL, "begin suspect": run.BeginSuspectSQL, "lock back": store.LockBackSQL,
	"key page": upkeep.KeyPageSQL, "lock keys": upkeep.LockKeysSQL, "delete keys": upkeep.DeleteKeysSQL,
	"extend": run.ExtendSQL, "hear": run.HearSQL, "remove canceled": run.RemoveCanceledSQL,
	"lease again":       store.LeaseAgainSQL,
	"complete and keep": store.CompleteAndKeepSQL,
	"lock heads":        store.LockHeadsSQL, "promote heads": store.PromoteHeadsSQL,
}

// TakeTaskSQL is the claim of one task, whose plan is in a function.
const TakeTaskSQL = run.TakeTaskSQL

// Statements that are functions, whose plans are theirs: a lease, and the end of leases.
const (
	LeaseSQL  = run.LeaseSQL
	FinishSQL = run.FinishSQL
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
const (
	FoldSQL          = upkeep.FoldSQL
	PauseScheduleSQL = pauseScheduleSQL
)

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
