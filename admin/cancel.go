package admin

import (
	"context"
	"slices"

	"github.com/txoutbox/outbox"
)

// CancelResult is what became of tasks by [Client.Cancel]. Those that are in neither list do not
// exist, or are dead letters.
type CancelResult struct {
	Canceled  []int64 // they waited, and are deleted
	Requested []int64 // they run, and were asked to end
}

// Cancel cancels tasks, in one transaction. See [outbox.Cancel].
func (c *Client) Cancel(ctx context.Context, taskIDs []int64) (r CancelResult, err error) {
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		for _, id := range taskIDs {
			result, err := outbox.Cancel(ctx, q, id, outbox.Schema(string(c.schema)))
			switch {
			case err != nil:
				return nil, err
			case result == outbox.CancelRemoved:
				r.Canceled = append(r.Canceled, id)
			case result == outbox.CancelRequested:
				r.Requested = append(r.Requested, id)
			}
		}
		return entriesOf(ActionCancel, slices.Concat(r.Canceled, r.Requested)), nil
	})
	if err != nil {
		return CancelResult{}, failed("cancel", err)
	}
	return r, nil
}

// RunNowResult is what became of tasks by [Client.RunNow].
type RunNowResult struct {
	Due []int64 // they were scheduled; the others were not
}

// RunNow makes scheduled tasks due at once, in one transaction. See [outbox.RunNow].
func (c *Client) RunNow(ctx context.Context, taskIDs []int64) (r RunNowResult, err error) {
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		for _, id := range taskIDs {
			found, err := outbox.RunNow(ctx, q, id, outbox.Schema(string(c.schema)))
			if err != nil {
				return nil, err
			}
			if found {
				r.Due = append(r.Due, id)
			}
		}
		return entriesOf(ActionRunNow, r.Due), nil
	})
	if err != nil {
		return RunNowResult{}, failed("run now", err)
	}
	return r, nil
}
