package deadletter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Page is one page of what goes on in pages: of [RedrivePage] and [PurgePage], and of [ListPage] and [CountPage].
type Page struct {
	Count int64  // how many dead letters it moved, deleted, listed or counted
	Next  Cursor // where the next page begins
	Last  bool   // there is no next page
}

// pageOf is the page after a place that was to have limit letters and has n, the last of them at last, and looked until there (zero: to the end).
func pageOf(n, limit int, after, last, until Cursor) Page {
	p := Page{Count: int64(n), Next: until}
	if full := n == limit; full || until == (Cursor{}) {
		p.Next, p.Last = after, !full
		if n > 0 {
			p.Next = last
		}
	}
	return p
}

// RedrivePage redrives up to limit dead letters that pass the filter, the oldest first, from the one after the cursor on; the zero Filter means all,
// the zero Cursor begins with the oldest. A limit of 0 means 1,000, which is also the most.
//
// With an Error or a Reason it looks at 10,000 dead letters of the filter's type and times at most, so that it takes about as long where few pass: a
// page may have fewer than limit, or none, and not be the last one. The next page begins at Page.Next, or where this one began after a rollback. What
// another transaction is moving or deleting is passed over, and what died before the place and commits after it is not seen: begin again for these. What is redriven may
// die again: set DiedBefore, or the pages may never end. Everything else is as of [Redrive].
func RedrivePage(ctx context.Context, q outbox.Querier, f Filter, after Cursor, limit int, opts ...Option) (Page, error) {
	p, err := page(ctx, q, redriveSQL, f, after, limit, opts)
	if err != nil && !errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("deadletter: redrive: %w", err)
	}
	return p, err
}

// PurgePage deletes up to limit dead letters that pass the filter. The zero Filter is refused as by [Purge]; pages, limit and cursor are as of [RedrivePage].
func PurgePage(ctx context.Context, q outbox.Querier, f Filter, after Cursor, limit int, opts ...Option) (Page, error) {
	err := f.purgeable()
	if err != nil {
		return Page{}, err
	}
	p, err := page(ctx, q, purgeSQL, f, after, limit, opts)
	if err != nil && !errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("deadletter: purge: %w", err)
	}
	return p, err
}

// lookedAt is how many dead letters one page looks at that redrives or purges.
const lookedAt = 10_000

// order is the one in which pages go on.
type order struct{ words, after, from, until string }

var (
	oldestFirst = order{"died_at, task_id", ">", ">=", "<="}
	latestFirst = order{"died_at DESC, task_id DESC", "<", "<=", ">="}
)

// The last dead letter that a page looks at. What an index cannot tell, error and reason, is left out of the filter here.
const pageEndSQL = `/* outbox: the end of a page of dead letters */
SELECT (extract(epoch FROM died_at) * 1000000)::bigint, task_id FROM outbox.dead_task
 WHERE %s ORDER BY %s OFFSET %s LIMIT 1`

const inPages = ` ORDER BY died_at, task_id LIMIT %s`

func page(ctx context.Context, q outbox.Querier, statement string, f Filter, after Cursor, limit int, opts []Option) (p Page, err error) {
	s, err := newSettings(opts)
	if err != nil {
		return p, err
	}
	if limit == 0 {
		limit = maxRows
	}
	if limit < 0 || limit > maxRows {
		return p, fmt.Errorf("%w: limit %d: must be between 1 and %d, or 0 for %d", ErrInvalid, limit, maxRows, maxRows)
	}
	if _, err := pageFilter(f, after, Cursor{}, oldestFirst); err != nil {
		return p, err
	}
	err = inTx(ctx, q, func(q outbox.Querier) error {
		var until Cursor // zero: to the last one
		if f.Error != "" || f.Reason != "" {
			if until, err = s.pageEnd(ctx, q, f, after, oldestFirst, lookedAt); err != nil {
				return err
			}
		}
		query, args, err := pageStatement(s, statement, f, after, until, limit)
		if err != nil {
			return err
		}
		moved, err := move(ctx, q, query, args...)
		if err != nil {
			return err
		}
		last := Cursor{}
		if len(moved) > 0 {
			last = moved[len(moved)-1].cursor()
		}
		p = pageOf(len(moved), limit, after, last, until)
		return nil
	})
	if err != nil {
		return Page{}, pgerr.WithoutDSN(err)
	}
	return p, nil
}

// pageEnd is zero where there are fewer than n.
func (s settings) pageEnd(ctx context.Context, q outbox.Querier, f Filter, after Cursor, o order, n int) (Cursor, error) {
	query, args, err := s.pageEndStatement(f, after, o, n)
	if err != nil {
		return Cursor{}, err
	}
	var last moving
	err = q.QueryRowContext(ctx, query, args...).Scan(&last.diedAt, &last.TaskID)
	if errors.Is(err, sql.ErrNoRows) {
		return Cursor{}, nil
	}
	return last.cursor(), err
}

func (s settings) pageEndStatement(f Filter, after Cursor, o order, n int) (query string, args []any, err error) {
	f.Error, f.Reason = "", ""
	b, err := pageFilter(f, after, Cursor{}, o)
	if err != nil {
		return "", nil, err
	}
	return s.sql(fmt.Sprintf(pageEndSQL, b.where(), o.words, b.arg(n-1))), b.args, nil
}

func pageStatement(s settings, statement string, f Filter, after, until Cursor, limit int) (query string, args []any, err error) {
	b, err := pageFilter(f, after, until, oldestFirst)
	if err != nil {
		return "", nil, err
	}
	return s.sql(fmt.Sprintf(statement, b.where()+fmt.Sprintf(inPages, b.arg(limit)))), b.args, nil
}

// pageFilter are the conditions of what passes after one place and not after the other; zero is none.
func pageFilter(f Filter, after, until Cursor, o order) (b *binder, err error) {
	b = new(binder)
	if err := f.bind(b); err != nil {
		return nil, err
	}
	if y := after.DiedAt.UTC().Year(); after != (Cursor{}) && (y < 1 || y > 9999) {
		return nil, fmt.Errorf("%w: Cursor.DiedAt: the year %d, must be between 1 and 9999", ErrInvalid, y)
	}
	if after != (Cursor{}) {
		b.and("(died_at, task_id) "+o.after+" (%s, %s)", b.time(after.DiedAt), b.arg(after.TaskID))
	}
	if until != (Cursor{}) {
		b.and("(died_at, task_id) "+o.until+" (%s, %s)", b.time(until.DiedAt), b.arg(until.TaskID))
	}
	if after != (Cursor{}) && until != (Cursor{}) { // PostgreSQL takes two comparisons of rows for independent, and so a page for a large part of all
		b.and("died_at "+o.from+" %s", b.time(after.DiedAt))
		b.and("died_at "+o.until+" %s", b.time(until.DiedAt))
	}
	return b, nil
}

// many goes through all pages, in small transactions. When ctx ends, the error is ctx's, also where PostgreSQL says
// that it canceled a statement.
func many(ctx context.Context, db *sql.DB, f Filter, perSecond int, statement string, opts []Option) (n int64, err error) {
	n, err = everyPage(ctx, db, f, perSecond, statement, opts)
	if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return n, err
}

func everyPage(ctx context.Context, db *sql.DB, f Filter, perSecond int, statement string, opts []Option) (n int64, err error) {
	if perSecond < 0 {
		return 0, fmt.Errorf("%w: perSecond %d: must not be negative; 0 is no limit", ErrInvalid, perSecond)
	}
	if _, err := newSettings(opts); err != nil {
		return 0, err
	}
	if err := f.bind(&binder{}); err != nil {
		return 0, err
	}
	if db == nil {
		return 0, fmt.Errorf("%w: the *sql.DB is nil", outbox.ErrNoTransaction)
	}
	size := maxRows
	if perSecond > 0 {
		size = min(max(perSecond/10, 1), maxRows)
	}
	// What is redriven may die again while this goes on, and must not be redriven for ever.
	var now int64
	err = inTx(ctx, db, func(q outbox.Querier) error {
		return q.QueryRowContext(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&now)
	})
	if err != nil {
		return 0, err
	}
	if until := time.UnixMicro(now + 1); f.DiedBefore.IsZero() || f.DiedBefore.After(until) {
		f.DiedBefore = until
	}
	start := time.Now()
	for p := (Page{}); ; {
		if p, err = page(ctx, db, statement, f, p.Next, size, opts); err != nil {
			return n, err
		}
		n += p.Count
		if p.Last {
			return n, nil
		}
		if perSecond == 0 {
			continue
		}
		pause := time.NewTimer(time.Until(start.Add(time.Duration(float64(n) / float64(perSecond) * float64(time.Second)))))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return n, ctx.Err()
		}
	}
}
