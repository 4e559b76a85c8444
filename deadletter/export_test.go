package deadletter

import (
	"context"
	"errors"
	"fmt"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

// Statement is one of the package's with its arguments, for the test of their plans.
type Statement struct {
	Query string
	Args  []any
}

// ListStatement is that of List.
func ListStatement(f Filter, after Cursor, limit int) Statement {
	s, limit, err := listSettings(limit, nil)
	if err != nil {
		panic(err)
	}
	query, args, err := s.listStatement(f, after, Cursor{}, limit)
	if err != nil {
		panic(err)
	}
	return Statement{query, args}
}

// PageStatements are what RedrivePage and PurgePage send for a page after the given place, with the end that q finds.
func PageStatements(ctx context.Context, q outbox.Querier, f Filter, after Cursor) (end, redrive, purge Statement, err error) {
	s, err := newSettings(nil)
	if err != nil {
		return
	}
	made := func(query string, args []any, e error) Statement {
		err = errors.Join(err, e)
		return Statement{query, args}
	}
	end = made(s.pageEndStatement(f, after, oldestFirst, lookedAt))
	var until Cursor
	if f.Error != "" || f.Reason != "" {
		until, err = s.pageEnd(ctx, q, f, after, oldestFirst, lookedAt)
	}
	redrive = made(pageStatement(s, redriveSQL, f, after, until, maxRows))
	purge = made(pageStatement(s, purgeSQL, f, after, until, maxRows))
	return end, redrive, purge, err
}

// SearchStatements are what ListPage and CountPage send for a page after the given place, with the end that q finds.
func SearchStatements(ctx context.Context, q outbox.Querier, f Filter, after Cursor) (end, list, count Statement, err error) {
	s, err := newSettings(nil)
	if err != nil {
		return
	}
	until, err := s.pageEnd(ctx, q, f, after, latestFirst, 2000)
	made := func(query string, args []any, e error) Statement {
		err = errors.Join(err, e)
		return Statement{query, args}
	}
	end = made(s.pageEndStatement(f, after, latestFirst, 2000))
	list = made(s.listStatement(f, after, until, defaultPage))
	count = made(s.countStatement(f, after, until))
	return end, list, count, err
}

// RedriveStatement is that of Redrive.
func RedriveStatement(ids []int64) Statement {
	s, _ := newSettings(nil)
	return Statement{s.sql(fmt.Sprintf(redriveSQL, "task_id = ANY ($1::bigint[])")), []any{pq.Array(ids)}}
}
