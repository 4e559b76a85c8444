package admin

import (
	"context"
	"errors"
)

var (
	ParsePlace = parsePlace // what a list does with its Page.After
	PlaceOf    = Task.place // where the page begins after one that ends with a task
)

// Statement is one of the package's with its arguments, for the test of their plans.
type Statement struct {
	Query string
	Args  []any
}

func statement(query string, args []any) Statement { return Statement{query, args} }

// TasksStatement is that of Tasks.
func TasksStatement(taskType string, state State, after string, limit int) Statement {
	query, args, err := tasksStatement(taskType, state, &Page{After: after, Limit: limit})
	if err != nil {
		panic(err)
	}
	return Statement{query, args}
}

// Statements are those of other reads.
func Statements(taskID int64, taskType string) map[string]Statement {
	return map[string]Statement{
		"get":            {taskSQL, []any{taskID}},
		"runs of a task": {taskRunsSQL, []any{taskID, taskType, maxRuns}},
		"place":          {placeSQL, []any{taskID}},
		"secrets":        {secretsSQL[1], []any{taskID}},
		"relays":         {relaysSQL, nil},
		"runs of relays": {relayRunsSQL, []any{maxRuns}},
		"types":          {typesSQL, nil},
		"schedules":      {schedulesSQL, nil},
		"samples":        {samplesSQL, []any{taskType, int64(3_600_000_000)}},
	}
}

// DeadStatements are those of a page of dead letters, with the end that the client's pool finds.
type DeadStatements struct{ End, List, Count, Redrive, Purge Statement }

// Statements returns the statements of DeadLetters and CountDeadLetters, or with oldest of Redrive and Purge.
func (c *Client) Statements(ctx context.Context, f Filter, p Page, oldest bool) (s DeadStatements, err error) {
	d, err := newDeadPage(f, p, defaultLimit, map[bool]order{false: latestFirst, true: oldestFirst}[oldest])
	if d.Look = p.Look; p.Look > 0 {
		s.End = statement(d.endStatement())
		err = errors.Join(err, d.findEnd(ctx, c, c.q))
	}
	s.List, s.Count = statement(d.listStatement()), statement(d.countStatement())
	s.Redrive, s.Purge = statement(d.takeStatement(redriveSQL)), statement(d.takeStatement(purgeSQL))
	return s, err
}
