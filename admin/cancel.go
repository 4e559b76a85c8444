package admin

import (
	"context"

	"github.com/txoutbox/outbox"
)

// Cancel cancels tasks, in one transaction, and returns the result of each, in their order. See
// [outbox.Cancel].
func (c *Client) Cancel(ctx context.Context, taskIDs []int64) ([]outbox.CancelResult, error) {
	results, err := changeEach(ctx, c, ActionCancel, taskIDs, outbox.Cancel, outbox.CancelNotFound)
	return results, failed("cancel", err)
}

// RunNow makes scheduled tasks due at once, in one transaction, and returns the result of each, in
// their order. See [outbox.RunNow].
func (c *Client) RunNow(ctx context.Context, taskIDs []int64) ([]outbox.RunNowResult, error) {
	results, err := changeEach(ctx, c, ActionRunNow, taskIDs, outbox.RunNow, outbox.RunNowNotScheduled)
	return results, failed("run now", err)
}

// changeEach changes tasks, and writes an entry with those whose result is not none.
func changeEach[R comparable](ctx context.Context, c *Client, action Action, taskIDs []int64,
	change func(context.Context, outbox.Querier, int64, ...outbox.SchemaOption) (R, error), none R,
) (results []R, err error) {
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		var changed []int64
		for _, id := range taskIDs {
			r, err := change(ctx, q, id, outbox.Schema(string(c.schema)))
			if err != nil {
				return nil, err
			}
			if results = append(results, r); r != none {
				changed = append(changed, id)
			}
		}
		return entriesOf(action, changed), nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}
