package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

// Statements are the relay's statements on the table of tasks, for the tests of their plans.
var Statements = map[string]string{
	"claim": claimSQL, "claim from": claimFromSQL, "claim one": claimOneSQL,
	"lease": leaseSQL, "lease from": leaseFromSQL,
	"look": lookSQL, "last": lastSQL, "promote": promoteSQL,
	"take over": takeOverSQL, "expire": expireSQL, "stranded": strandedSQL, "take stranded": takeStrandedSQL, "stranded leases": strandedLeasesSQL,
	"dead relays": deadRelaysSQL, "unhandled": unhandledSQL, "reap runs": reapRunsSQL, "reap relays": reapRelaysSQL, "sign off": signOffSQL,
	"complete many": completeManySQL, "complete": completeSQL, "lock lease": lockLeaseSQL, "return lease": returnLeaseSQL,
	"dead lease": deadLeaseSQL, "begin suspect": beginSuspectSQL, "lock back": lockBackSQL,
}

// WithClaim makes one claim for a type of r's with a statement of the test's in place of the relay's: it has the
// parameters of claimSQL. It returns the error that the dispatcher would get.
func (r *Relay) WithClaim(taskType, query string) error {
	r.conns = newConns(r.db)
	defer r.conns.release()
	for _, h := range r.handlers {
		if h.Type == taskType {
			return r.runTx(context.Background(), h, claimWith(query), func([]*row) {})
		}
	}
	return nil
}

type claimWith string

func (c claimWith) take(ctx context.Context, r *Relay, h *handlers.Handler, tx *sql.Tx) ([]*row, string, error) {
	return r.claimRows(ctx, h, tx, h.BatchSize, string(c), h.Type, h.BatchSize)
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
