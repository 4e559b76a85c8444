package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

// repair finds a kind of defects by a query, and repairs them.
type repair struct {
	kind       DefectKind
	findSQL    string                                     // subject, is, should be, conflict
	statements []string                                   // repair them, in one transaction
	run        func(ctx context.Context, c *Client) error // instead, in transactions of its own
}

// repairs are all, in their order: ids first, as the audit log needs them.
var repairs = []repair{
	{kind: DefectSequences, findSQL: findSequencesSQL, statements: []string{setSequencesSQL}},
	{kind: DefectCounts, findSQL: findCountsSQL, statements: []string{lockCountsSQL, addCountsSQL}},
	{kind: DefectUniqueKeys, findSQL: findKeysSQL, run: repairKeys},
	{kind: DefectOrderingKeys, findSQL: findHeadlessSQL, statements: []string{addHeadlessSQL}},
	{kind: DefectLeases, findSQL: findLeasesSQL, run: func(ctx context.Context, c *Client) error { // like a takeover
		return c.pages(ctx, upkeep.StrandedSQL, nil, upkeep.TakeStrandedSQL)
	}},
	{kind: DefectLeftovers, findSQL: findLeftoversSQL, statements: []string{deleteLeftoversSQL}},
	{kind: DefectTaskIDs, findSQL: findTaskIDsSQL},
}

// args are the arguments of its statements.
func (r repair) args(o RepairOptions) []any {
	if r.kind == DefectSequences {
		return []any{o.Above}
	}
	return nil
}

// find runs the repair's query.
func (r repair) find(ctx context.Context, c *Client, q outbox.Querier, o RepairOptions) ([]Defect, error) {
	return rows(ctx, q, c.schema.SQL(r.findSQL), r.args(o), func(row scanner, d *Defect) error {
		d.Kind = r.kind
		return row.Scan(&d.Subject, &d.Is, &d.ShouldBe, &d.Conflict)
	})
}

// do repairs all defects of the kind.
func (r repair) do(ctx context.Context, c *Client, o RepairOptions) error {
	do := r.run
	if do == nil {
		do = func(ctx context.Context, c *Client) error {
			return c.inTx(ctx, func(q outbox.Querier) error {
				for _, statement := range r.statements { // each sees what is there after the one before
					if _, err := q.ExecContext(ctx, c.schema.SQL(statement), r.args(o)...); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return failed("repair "+string(r.kind), do(ctx, c))
}

// Repair repairs the defects that [Client.Defects] returns, and returns them. It leaves conflicts
// alone: a second call returns only these.
//
// Relays and enqueueing go on. Counts are added to the counter log, without a lock. Unique keys are
// locked for one short transaction of up to 500. If another transaction locks a key for longer than
// 500 ms, Repair ends with an error. Its work until then stays, and it may be called again. A lease
// that has no relay is taken over, and only that task is locked.
//
// It needs the rights of a worker; to set sequences, the role must own them. The audit log has an
// entry before it and one after it.
//
// Experimental: a minor version may change it.
func (c *Client) Repair(ctx context.Context, o RepairOptions) (found []Defect, err error) {
	if _, err := c.pool("Repair"); err != nil {
		return nil, err
	}
	if found, err = c.Defects(ctx, o); err != nil {
		return nil, err
	}
	var targets []string
	var todo []repair
	repaired := 0
	for _, r := range repairs {
		n := 0
		for _, d := range found {
			if d.Kind == r.kind && d.Conflict == "" {
				n++
			}
		}
		if n == 0 {
			continue
		}
		todo, targets, repaired = append(todo, r), append(targets, fmt.Sprintf("%s %d", r.kind, n)), repaired+n
	}
	if len(todo) == 0 {
		return found, nil
	}
	if todo[0].kind == DefectSequences { // also that of the audit log
		if err := todo[0].do(ctx, c, o); err != nil {
			return found, err
		}
		todo = todo[1:]
	}
	err = c.audited(ctx, AuditEntry{Action: ActionRepair, Target: strings.Join(targets, ", ")}, func() (int64, error) {
		for _, r := range todo {
			if err := r.do(ctx, c, o); err != nil {
				return 0, err
			}
		}
		return int64(repaired), nil
	})
	wake.All()
	return found, err
}

const (
	keysAtOnce = 500
	keysRead   = 100_000
	// A deadlock with an app's transaction ends here, before PostgreSQL looks for it after 1 s.
	keyLockSQL = `SET LOCAL lock_timeout = '500ms'`
)

// keyless is a task without its unique key.
type keyless struct {
	taskType, key string
	taskID        int64
}

// repairKeys first deletes the keys of other tasks, which would block the right ones.
func repairKeys(ctx context.Context, c *Client) error {
	if err := c.pages(ctx, lockWrongKeysSQL, []any{maxRows}, deleteWrongKeysSQL); err != nil {
		return err
	}
	for n := keysRead; n == keysRead; {
		all, err := rows(ctx, c.q, c.schema.SQL(keylessPageSQL), []any{keysRead}, func(row scanner, k *keyless) error {
			return row.Scan(&k.taskType, &k.key, &k.taskID)
		})
		if err != nil {
			return err
		}
		n = len(all)
		for some := range slices.Chunk(all, keysAtOnce) {
			if err := c.giveKeys(ctx, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveKeys gives tasks their keys, in one transaction.
func (c *Client) giveKeys(ctx context.Context, tasks []keyless) error {
	var types, keys []string
	var ids []int64
	for _, k := range tasks {
		types, keys, ids = append(types, k.taskType), append(keys, k.key), append(ids, k.taskID)
	}
	return c.inTx(ctx, func(q outbox.Querier) error {
		if _, err := q.ExecContext(ctx, keyLockSQL); err != nil {
			return err
		}
		named := []any{pq.Array(types), pq.Array(keys)}
		if _, err := c.lockAndChange(ctx, q, lockGoneKeysSQL, named, upkeep.DeleteKeysSQL); err != nil {
			return err
		}
		_, err := q.ExecContext(ctx, c.schema.SQL(giveKeysSQL), append(named, pq.Array(ids))...)
		return err
	})
}

// pages locks rows by one statement and changes them by the next, which sees their present state, in
// transactions of up to 1,000 rows each.
func (c *Client) pages(ctx context.Context, lock string, args []any, change string) error {
	for n := maxRows; n == maxRows; {
		err := c.inTx(ctx, func(q outbox.Querier) (err error) {
			n, err = c.lockAndChange(ctx, q, lock, args, change)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lockAndChange returns the number of locked rows. Their ids are the argument of the change.
func (c *Client) lockAndChange(
	ctx context.Context, q outbox.Querier, lock string, args []any, change string,
) (int, error) {
	locked, err := rows(ctx, q, c.schema.SQL(lock), args, func(row scanner, id *string) error { return row.Scan(id) })
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	_, err = q.ExecContext(ctx, c.schema.SQL(change), pq.Array(locked))
	return len(locked), err
}
