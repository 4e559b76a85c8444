package deadletter

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	defaultPage = 100
	maxLook     = 100_000
)

const listSQL = `/* outbox: list dead letters */
SELECT ` + columns + ` FROM outbox.dead_task
 WHERE %s
 ORDER BY died_at DESC, task_id DESC LIMIT %s`

// List returns up to limit dead letters that pass the filter, without their payloads, the latest first, from the one
// after the cursor on. A limit of 0 means 100; the most is 1,000. Fewer than limit are the last page. Pages neither repeat
// nor skip a letter when others come or go meanwhile; those that come are before the first page.
//
// An Error or a Reason that few letters have makes it read all that the rest of the filter lets through: see [ListPage].
func List(ctx context.Context, q outbox.Querier, f Filter, after Cursor, limit int, opts ...Option) ([]Letter, error) {
	s, limit, err := listSettings(limit, opts)
	if err != nil {
		return nil, err
	}
	out, err := s.list(ctx, q, f, after, Cursor{}, limit)
	if err != nil {
		return nil, listError("list", err)
	}
	return out, nil
}

// ListPage is List for a search that must answer soon. With an Error or a Reason it looks at so many dead letters of the filter's type and times at most:
// the page may have fewer letters than limit, or none, and not be the last one. The next page begins at Page.Next. A look of 0 means 10,000; the most is
// 100,000. Errors may be of 4 kB, so how long it takes is not a matter of their number alone.
func ListPage(ctx context.Context, q outbox.Querier, f Filter, after Cursor, limit, look int, opts ...Option) ([]Letter, Page, error) {
	s, limit, err := listSettings(limit, opts)
	if err == nil {
		look, err = checkLook(look)
	}
	if err != nil {
		return nil, Page{}, err
	}
	if _, err := pageFilter(f, after, Cursor{}, latestFirst); err != nil {
		return nil, Page{}, err
	}
	var until Cursor // zero: to the last one
	if f.Error != "" || f.Reason != "" {
		if until, err = s.pageEnd(ctx, q, f, after, latestFirst, look); err != nil {
			return nil, Page{}, listError("list", err)
		}
	}
	out, err := s.list(ctx, q, f, after, until, limit)
	if err != nil {
		return nil, Page{}, listError("list", err)
	}
	last := Cursor{}
	if len(out) > 0 {
		last = out[len(out)-1].Cursor()
	}
	return out, pageOf(len(out), limit, after, last, until), nil
}

func checkLook(look int) (int, error) {
	if look == 0 {
		look = lookedAt
	}
	if look < 0 || look > maxLook {
		return 0, fmt.Errorf("%w: look %d: must be between 1 and %d, or 0 for %d", ErrInvalid, look, maxLook, lookedAt)
	}
	return look, nil
}

// listError is err, as the caller sees it.
func listError(what string, err error) error {
	if err == nil || errors.Is(err, ErrInvalid) {
		return err
	}
	return fmt.Errorf("deadletter: %s: %w", what, pgerr.WithoutDSN(err))
}

func listSettings(limit int, opts []Option) (settings, int, error) {
	s, err := newSettings(opts)
	if err != nil {
		return s, 0, err
	}
	if limit == 0 {
		limit = defaultPage
	}
	if limit < 0 || limit > maxRows {
		return s, 0, fmt.Errorf("%w: limit %d: must be between 1 and %d, or 0 for %d", ErrInvalid, limit, maxRows, defaultPage)
	}
	return s, limit, nil
}

// list reads one page, to the given end or, where that is zero, to the last letter.
func (s settings) list(ctx context.Context, q outbox.Querier, f Filter, after, until Cursor, limit int) (out []Letter, err error) {
	query, args, err := s.listStatement(f, after, until, limit)
	if err != nil {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l Letter
		if err := l.scan(rows); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, rows.Err()
}

func (s settings) listStatement(f Filter, after, until Cursor, limit int) (query string, args []any, err error) {
	b, err := pageFilter(f, after, until, latestFirst)
	if err != nil {
		return "", nil, err
	}
	return s.sql(fmt.Sprintf(listSQL, b.where(), b.arg(limit))), b.args, nil
}

const countSQL = `/* outbox: count dead letters */
SELECT count(*) FROM outbox.dead_task WHERE %s`

// Count returns how many dead letters pass the filter. It reads all of them, so it takes its time where they are millions: see [CountPage].
func Count(ctx context.Context, q outbox.Querier, f Filter, opts ...Option) (n int64, err error) {
	s, err := newSettings(opts)
	if err != nil {
		return 0, err
	}
	n, err = s.count(ctx, q, f, Cursor{}, Cursor{})
	return n, listError("count", err)
}

// CountPage is Count for a caller that must answer soon, and says "at least" else: it looks at so many dead letters of the filter's type and times at most, the
// latest first, from the one after the cursor on. The next page begins at Page.Next; look is as of [ListPage].
func CountPage(ctx context.Context, q outbox.Querier, f Filter, after Cursor, look int, opts ...Option) (p Page, err error) {
	s, err := newSettings(opts)
	if err == nil {
		look, err = checkLook(look)
	}
	if err == nil {
		_, err = pageFilter(f, after, Cursor{}, latestFirst)
	}
	if err != nil {
		return p, err
	}
	until, err := s.pageEnd(ctx, q, f, after, latestFirst, look)
	if err != nil {
		return p, listError("count", err)
	}
	n, err := s.count(ctx, q, f, after, until)
	if err != nil {
		return p, listError("count", err)
	}
	if until == (Cursor{}) {
		return Page{Count: n, Next: after, Last: true}, nil
	}
	return Page{Count: n, Next: until}, nil
}

func (s settings) count(ctx context.Context, q outbox.Querier, f Filter, after, until Cursor) (n int64, err error) {
	query, args, err := s.countStatement(f, after, until)
	if err != nil {
		return 0, err
	}
	err = q.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

func (s settings) countStatement(f Filter, after, until Cursor) (query string, args []any, err error) {
	b, err := pageFilter(f, after, until, latestFirst)
	if err != nil {
		return "", nil, err
	}
	return s.sql(fmt.Sprintf(countSQL, b.where())), b.args, nil
}
