package admin

import (
	"context"

	"github.com/txoutbox/outbox"
)

// Cancel cancels tasks, in one transaction. It returns the waiting tasks that it deleted, and the
// running tasks that it asked to end. The others do not exist, or are dead letters. See
// [outbox.Cancel].
func (c *Client) Cancel(ctx context.Context, taskIDs ...int64) (canceled, requested []int64, err error) {
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		for _, id := range taskIDs {
			result, err := outbox.Cancel(ctx, q, id, outbox.Schema(string(c.schema)))
			switch {
			case err != nil:
				return nil, err
			case result == outbox.CancelRemoved:
				canceled = append(canceled, id)
			case result == outbox.CancelRequested:
				requested = append(requested, id)
			}
		}
		return entriesOf("cancel", append(append([]int64{}, canceled...), requested...)), nil
	})
	if err != nil {
		return nil, nil, failed("cancel", err)
	}
	return canceled, requested, nil
}

// RunNow makes scheduled tasks due at once, in one transaction, and returns those that were
// scheduled. See [outbox.RunNow].
func (c *Client) RunNow(ctx context.Context, taskIDs ...int64) (due []int64, err error) {
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		for _, id := range taskIDs {
			found, err := outbox.RunNow(ctx, q, id, outbox.Schema(string(c.schema)))
			if err != nil {
				return nil, err
			}
			if found {
				due = append(due, id)
			}
		}
		return entriesOf("run_now", due), nil
	})
	if err != nil {
		return nil, failed("run now", err)
	}
	return due, nil
}
