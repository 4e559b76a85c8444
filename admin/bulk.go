package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
)

// Bulk says how [Client.Redrive] and [Client.Purge] take dead letters. The zero value means all that
// pass the filter, at full speed.
type Bulk struct {
	// After is BulkResult.Next of a call that ended early; "" begins with the oldest.
	After string
	// Limit is the most dead letters that one call takes, including skipped ones; 0 is no limit.
	Limit int
	// PerSecond is the most dead letters redriven or purged a second; 0 is no limit.
	PerSecond int
	// Timeout bounds each transaction; 0 is no bound.
	Timeout time.Duration
	// WithoutKey makes Redrive run also dead letters whose unique key another task holds, as tasks
	// without a unique key. Purge refuses it.
	WithoutKey bool
	// Progress is called after each transaction with the result so far. If it returns false, the
	// call ends without an error.
	Progress func(BulkResult) bool
}

func (o Bulk) check() error {
	switch {
	case o.Limit < 0:
		return invalid("Bulk.Limit: %d: must not be negative; 0 is no limit", o.Limit)
	case o.PerSecond < 0:
		return invalid("Bulk.PerSecond: %d: must not be negative; 0 is no limit", o.PerSecond)
	case o.Timeout < 0:
		return invalid("Bulk.Timeout: %v: must not be negative; 0 is no bound", o.Timeout)
	}
	return nil
}

// BulkResult is what became of dead letters; the oldest are first. An id takes 8 bytes of memory.
type BulkResult struct {
	IDs     []int64 // redriven or purged
	Skipped []int64 // left by Redrive: another task holds their unique key
	Next    string  // Bulk.After to go on; "": none is left
}

func (r BulkResult) size() int { return len(r.IDs) + len(r.Skipped) }

// pageScan is the most dead letters that one transaction of a search reads.
const pageScan = 10_000

// bulk is an action on dead letters, and its next page.
type bulk struct {
	action Action
	query  string
	by     *string // who acts, for a query that writes it
	page   deadPage
}

// bulk acts on all dead letters that pass the filter, page by page.
func (c *Client) bulk(ctx context.Context, b bulk, f DeadFilter, o Bulk) (r BulkResult, err error) {
	if err := cmp.Or(f.checkChosen(b.action), o.check()); err != nil {
		return r, err
	}
	q := DeadQuery{Filter: f, After: o.After, Limit: maxRows, MaxScan: pageScan}
	if o.PerSecond > 0 {
		q.Limit = min(max(o.PerSecond/10, 1), maxRows)
	}
	if b.page, err = newDeadPage(q, maxRows, oldestFirst); err != nil {
		return r, err
	}
	b.page.by, r.Next = b.by, o.After
	for start := time.Now(); ; {
		if o.Limit > 0 {
			b.page.Limit = min(b.page.Limit, o.Limit-r.size())
		}
		if err := c.takePage(ctx, &b, o.Timeout, &r); err != nil {
			return r, failed(string(b.action), err)
		}
		more := o.Progress == nil || o.Progress(r)
		if r.Next == "" || !more || o.Limit > 0 && r.size() >= o.Limit {
			return r, nil
		}
		if o.PerSecond == 0 {
			continue
		}
		due := start.Add(time.Duration(float64(len(r.IDs)) / float64(o.PerSecond) * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

const nowSQL = `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// takePage acts on a page, in one transaction. Then it adds its result, and sets the next page.
func (c *Client) takePage(ctx context.Context, b *bulk, timeout time.Duration, r *BulkResult) (err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	defer func() {
		// PostgreSQL only says that it canceled a statement.
		if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}()
	page, ids, skipped := &b.page, []int64(nil), []int64(nil)
	var found []takenLetter
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		if page.before == 0 { // a redriven task may die again meanwhile, and must not be redriven for ever
			if err := q.QueryRowContext(ctx, nowSQL).Scan(&page.before); err != nil {
				return nil, err
			}
			page.before++
		}
		if err := page.findEnd(ctx, c, q); err != nil {
			return nil, err
		}
		query, args := page.statement(b.query, page.limited(), page.Limit)
		found, err = rows(ctx, q, c.schema.SQL(query), args, scanTaken)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			if l.skipped {
				skipped = append(skipped, l.taskID)
			} else {
				ids = append(ids, l.taskID)
			}
		}
		if page.Filter.IDs != nil {
			return entriesOf(b.action, ids), nil
		}
		return []AuditEntry{{Action: b.action, Target: "dead letters: " + page.Filter.String(), Count: int64(len(ids))}}, nil
	})
	if err != nil {
		return err
	}
	page.after, page.until = page.until, deadPlace{}
	if len(found) == page.Limit {
		page.after = found[len(found)-1].deadPlace
	}
	r.IDs, r.Skipped, r.Next = append(r.IDs, ids...), append(r.Skipped, skipped...), page.after.String()
	return nil
}
