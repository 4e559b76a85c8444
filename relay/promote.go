package relay

import (
	"context"
	"database/sql"
	"math/rand/v2"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
)

// NO KEY UPDATE is enough, and lets others read the row.
const promoteScheduledSQL = `/* outbox: promote scheduled tasks */
WITH due AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'scheduled' AND task_type = $1 AND run_at <= now()
   ORDER BY run_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready'
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM due)) AND (SELECT ` + pg.CommitAsync + `) IS NOT NULL`

// One promotion makes scheduled tasks of at most so many types ready: each is a statement.
const promoteScheduledTypes = 50

// promote makes due tasks and heads of ordering keys ready: a part of them, if there are many.
func (p *poller) promote(ctx context.Context, a plan.Promote) plan.Promoted {
	ctx, cancel := context.WithTimeout(ctx, pg.StatementTimeout)
	defer cancel()
	done := plan.Promoted{Promote: a, Refused: map[string]plan.Failure{}}
	conn, err := p.Conns.Get(ctx)
	if err == nil {
		if err = p.promoteOn(ctx, conn, &done); err != nil {
			pg.Drop(conn)
		} else {
			p.Conns.Put(conn)
		}
	}
	done.Failure = failureOf(p.explain(ctx, err))
	return done
}

// promoteOn goes on where PostgreSQL refuses a part.
func (p *poller) promoteOn(ctx context.Context, conn *sql.Conn, done *plan.Promoted) (err error) {
	if first := done.Promote.Request; first > 0 {
		done.Done, err = p.PromoteHeads(ctx, conn, first, done.Promote.Limit)
		if err != nil && !pgerr.Refusal(err) {
			done.Promote.Types = nil // they are not to blame
			return err
		}
		done.HeadsRefused = failureOf(p.explain(ctx, err))
	}
	due := done.Promote.Types
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	due = due[:min(len(due), promoteScheduledTypes)]
	for i, taskType := range due {
		var result sql.Result
		err := p.Conns.Own(ctx, conn, func(q pg.Querier) (err error) {
			result, err = q.ExecContext(ctx, p.SQL(promoteScheduledSQL), taskType, max(1, done.Promote.Limit/len(due)))
			return err
		})
		if pgerr.Refusal(err) { // others go on
			done.Refused[taskType] = failureOf(p.explain(ctx, err))
			continue
		}
		if err != nil {
			done.Promote.Types, done.Promote.Request = due[i:i+1], 0 // the others and the heads are not to blame
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		done.Done += int(n)
	}
	done.Promote.Types = due
	return nil
}
