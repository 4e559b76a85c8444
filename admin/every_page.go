package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
)

const nowSQL = `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// scanOfPage is the number of dead letters that one page reads.
const scanOfPage = 10_000

// EveryPage redrives or purges all dead letters that pass the filter and died before the call, the
// oldest first. take is [Client.Redrive], [Client.RedriveWithoutKey] or [Client.Purge] of this
// client, or a function that calls one of them. [Client.CountDeadLetters] counts them before.
// perSecond bounds the rate; 0 is no limit. Each page is a transaction of at most 1,000 dead
// letters, with its own audit entry.
//
// It returns the numbers of taken and skipped dead letters, also with an error, which ends it: ctx's;
// outbox.ErrCommitUnknown, after which the numbers may lack one page; or the server's. It may be
// called again. It may leave out dead letters that another transaction moves or deletes, and those
// whose death commits during the call.
func (c *Client) EveryPage(
	ctx context.Context, take func(context.Context, Filter, Page) (t Taken, next string, err error), f Filter,
	perSecond int,
) (taken, skipped int64, err error) {
	defer func() {
		// PostgreSQL only says that it canceled a statement.
		if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}()
	if perSecond < 0 {
		return 0, 0, invalid("EveryPage: %d a second: must not be negative; 0 is no limit", perSecond)
	}
	if _, err := c.pool("EveryPage"); err != nil {
		return 0, 0, err
	}
	if err := cmp.Or(f.checkChosen("take"), f.check()); err != nil {
		return 0, 0, err
	}
	p := Page{Limit: maxRows, MaxScan: scanOfPage}
	if perSecond > 0 {
		p.Limit = min(max(perSecond/10, 1), maxRows)
	}
	// A redriven task may die again meanwhile, and must not be redriven for ever.
	var now int64
	err = c.inTx(ctx, func(q outbox.Querier) error { return q.QueryRowContext(ctx, nowSQL).Scan(&now) })
	if err != nil {
		return 0, 0, failed("read the clock", err)
	}
	f = f.Until(time.UnixMicro(now + 1))
	for start := time.Now(); ; {
		t, next, err := take(ctx, f, p)
		taken, skipped = taken+int64(len(t.IDs)), skipped+int64(len(t.Skipped))
		if err != nil || next == "" {
			return taken, skipped, err
		}
		p.After = next
		if perSecond == 0 {
			continue
		}
		due := start.Add(time.Duration(float64(taken) / float64(perSecond) * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return taken, skipped, ctx.Err()
		}
	}
}
