package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

// mender repairs all defects of a kind, in transactions of its own.
type mender func(ctx context.Context, c *Client, o RepairOptions) error

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
func (c *Client) Repair(ctx context.Context, o RepairOptions) (found []Defect, err error) {
	if _, err := c.pool("Repair"); err != nil {
		return nil, err
	}
	if found, err = c.Defects(ctx, o); err != nil {
		return nil, err
	}
	wrong := map[DefectKind]int64{}
	for _, d := range found {
		if d.Conflict == "" {
			wrong[d.Kind]++
		}
	}
	if len(wrong) == 0 {
		return found, nil
	}
	if wrong[DefectSequences] > 0 { // also that of the audit log
		if err := mendSequences(ctx, c, o); err != nil {
			return found, failed("repair sequences", err)
		}
	}
	var targets []string
	mended := int64(0)
	for _, r := range repairs {
		if n := wrong[r.kind]; n > 0 {
			targets = append(targets, fmt.Sprintf("%s %d", r.kind, n))
			mended += n
		}
	}
	err = c.Noted(ctx, Entry{Action: "repair", Target: strings.Join(targets, ", ")}, func() (int64, error) {
		for _, r := range repairs {
			if wrong[r.kind] == 0 || r.kind == DefectSequences {
				continue
			}
			if err := r.mend(ctx, c, o); err != nil {
				return 0, failed("repair "+string(r.kind), err)
			}
		}
		return mended, nil
	})
	wake.All()
	return found, err
}

func mendSequences(ctx context.Context, c *Client, o RepairOptions) error {
	return c.inTx(ctx, func(q outbox.Querier) error {
		_, err := q.ExecContext(ctx, c.schema.SQL(mendSequencesSQL), o.Above)
		return err
	})
}

func mendCounts(ctx context.Context, c *Client, _ RepairOptions) error {
	return c.inTx(ctx, func(q outbox.Querier) error {
		if _, err := q.ExecContext(ctx, c.schema.SQL(lockCountsSQL)); err != nil {
			return err
		}
		_, err := q.ExecContext(ctx, c.schema.SQL(mendCountsSQL)) // its snapshot is from after the lock
		return err
	})
}

func mendHeadless(ctx context.Context, c *Client, _ RepairOptions) error {
	return c.one(ctx, mendHeadlessSQL)
}

func mendLeftovers(ctx context.Context, c *Client, _ RepairOptions) error {
	return c.one(ctx, mendLeftoversSQL)
}

// one executes a statement in a transaction of its own.
func (c *Client) one(ctx context.Context, statement string) error {
	return c.inTx(ctx, func(q outbox.Querier) error {
		_, err := q.ExecContext(ctx, c.schema.SQL(statement))
		return err
	})
}

// mendLeases works like a takeover.
func mendLeases(ctx context.Context, c *Client, _ RepairOptions) error {
	return c.pages(ctx, upkeep.StrandedSQL, nil, upkeep.TakeStrandedSQL)
}

const (
	keysAtOnce = 500
	keysRead   = 100_000
	// A deadlock with an app's transaction ends here, before PostgreSQL looks for it after 1 s.
	keyLockSQL = `SET LOCAL lock_timeout = '500ms'`
)

// mendKeys first deletes the keys of other tasks, which would block the right ones.
func mendKeys(ctx context.Context, c *Client, _ RepairOptions) error {
	if err := c.pages(ctx, lockWrongKeysSQL, []any{maxRows}, deleteWrongKeysSQL); err != nil {
		return err
	}
	type keyless struct {
		taskType, key string
		taskID        int64
	}
	for {
		all, err := rows(ctx, c.q, c.schema.SQL(keylessPageSQL), []any{keysRead}, func(row scanner, k *keyless) error {
			return row.Scan(&k.taskType, &k.key, &k.taskID)
		})
		if err != nil {
			return err
		}
		for rest := all; len(rest) > 0; {
			some := rest[:min(len(rest), keysAtOnce)]
			rest = rest[len(some):]
			var types, keys []string
			var ids []int64
			for _, k := range some {
				types, keys, ids = append(types, k.taskType), append(keys, k.key), append(ids, k.taskID)
			}
			err := c.inTx(ctx, func(q outbox.Querier) error {
				if _, err := q.ExecContext(ctx, keyLockSQL); err != nil {
					return err
				}
				if _, err := c.lockAndChange(ctx, q, lockGoneKeysSQL, []any{pq.Array(types), pq.Array(keys)}, upkeep.DeleteKeysSQL); err != nil {
					return err
				}
				_, err := q.ExecContext(ctx, c.schema.SQL(giveKeysSQL), pq.Array(types), pq.Array(keys), pq.Array(ids))
				return err
			})
			if err != nil {
				return err
			}
		}
		if len(all) < keysRead {
			return nil
		}
	}
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
func (c *Client) lockAndChange(ctx context.Context, q outbox.Querier, lock string, args []any, change string) (int, error) {
	locked, err := rows(ctx, q, c.schema.SQL(lock), args, func(row scanner, id *string) error { return row.Scan(id) })
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	_, err = q.ExecContext(ctx, c.schema.SQL(change), pq.Array(locked))
	return len(locked), err
}
