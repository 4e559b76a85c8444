package inspect

// ParsePlace is what List does with its after.
var ParsePlace = parsePlace

// PlaceOf is the Next of a page that a task is the last of.
var PlaceOf = placeOf

// Statement is one of the package's with its arguments, for the test of their plans.
type Statement struct {
	Query string
	Args  []any
}

// ListStatement is that of List.
func ListStatement(f Filter, after string, limit int) Statement {
	query, args, err := listStatement(f, after, limit, nil)
	if err != nil {
		panic(err)
	}
	return Statement{query, args}
}

// Statements are the others.
func Statements(taskID int64, taskType string) map[string]Statement {
	return map[string]Statement{
		"get":            {getSQL, []any{taskID}},
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
