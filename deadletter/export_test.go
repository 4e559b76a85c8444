package deadletter

import (
	"fmt"
	"time"

	"github.com/lib/pq"
)

// Statement is one of the package's with its arguments, for the test of their plans.
type Statement struct {
	Query string
	Args  []any
}

// ListStatement is that of List.
func ListStatement(f Filter, after Cursor, limit int) Statement {
	query, args, err := listStatement(f, after, limit, nil)
	if err != nil {
		panic(err)
	}
	return Statement{query, args}
}

// PageStatements are what RedriveMany and PurgeMany send for a page after the given letter.
func PageStatements(f Filter, after Letter) (redrive, purge Statement) {
	s, _ := newSettings(nil)
	page := func(statement string) Statement {
		query, args, err := pageStatement(s, statement, f, &moving{after.TaskID, after.DiedAt.UnixMicro()}, time.Now().UnixMicro(), maxRows)
		if err != nil {
			panic(err)
		}
		return Statement{query, args}
	}
	return page(redriveSQL), page(purgeSQL)
}

// RedriveStatement is that of Redrive.
func RedriveStatement(ids []int64) Statement {
	s, _ := newSettings(nil)
	return Statement{s.sql(fmt.Sprintf(redriveSQL, "task_id = ANY ($1::bigint[])")), []any{pq.Array(ids)}}
}
