package admin

import (
	"math"
	"strconv"
	"strings"
)

const (
	defaultLimit = 100
	maxRows      = 1000 // of a page, and that one statement moves or deletes
)

// checkLimit sets the limit of a query.
func checkLimit(limit *int, ifZero int) error {
	if *limit == 0 {
		*limit = ifZero
	}
	if *limit < 0 || *limit > maxRows {
		return invalid("Limit: %d: must be between 1 and %d, or 0 for %d", *limit, maxRows, ifZero)
	}
	return nil
}

// A place is the text of a list's name and of the numbers that the list is ordered by, like
// scheduled.1700000000000000.42. It says nothing that a row does not.
type bounds struct {
	min, max int64
	start    any // stands for the beginning
}

// maxMicroseconds is in the year 9999, behind which no task is.
const maxMicroseconds = 253402300799999999

var places = map[string][]bounds{
	string(StateReady):     {{math.MinInt16, math.MaxInt16, math.MinInt16}, {0, math.MaxInt16, -1}, {0, math.MaxInt64, 0}},
	string(StateScheduled): {{-maxMicroseconds, maxMicroseconds, nil}, {0, math.MaxInt64, 0}},
	string(StateLeased):    {{0, math.MaxInt64, 0}},
	string(StateWaiting):   {{0, math.MaxInt64, 0}},
	string(StateDead):      {{-maxMicroseconds, maxMicroseconds, nil}, {0, math.MaxInt64, int64(math.MaxInt64)}},
	string(StateFinished):  {{0, math.MaxInt64, int64(math.MaxInt64)}},
	"audit":                {{0, math.MaxInt64, int64(math.MaxInt64)}},
}

// place is where the task is in the order of its state.
func (t Task) place() string {
	switch t.State {
	case StateReady:
		return formatPlace(string(StateReady), int64(t.Priority), int64(t.Attempt), t.ID)
	case StateScheduled:
		return formatPlace(string(StateScheduled), t.RunAt.UnixMicro(), t.ID)
	case StateDead:
		return deadPlace{t.EndedAt.UnixMicro(), t.ID}.String()
	}
	return formatPlace(string(t.State), t.ID)
}

func formatPlace(list string, numbers ...int64) string {
	for _, n := range numbers {
		list += "." + strconv.FormatInt(n, 10)
	}
	return list
}

// parsePlace returns the numbers of a place, or those of the beginning, as arguments of a
// statement.
func parsePlace(list, text string) ([]any, error) {
	all := places[list]
	args := make([]any, len(all))
	fields := strings.Split(text, ".")
	refused := invalid("After: %.60q: it is not the end of a page of this list (%s)", text, list)
	for i, b := range all {
		if text == "" {
			args[i] = b.start
			continue
		}
		if len(fields) != len(all)+1 || fields[0] != list {
			return nil, refused
		}
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil || n < b.min || n > b.max {
			return nil, refused
		}
		args[i] = n
	}
	return args, nil
}

// cut returns the rows of a page, of which one more was asked for, and where the next page begins.
func cut[T any](found []T, limit int, place func(T) string) ([]T, string) {
	if len(found) <= limit {
		return found, ""
	}
	return found[:limit], place(found[limit-1])
}

// deadPlace is where a dead letter is in the order of deaths, in µs since 1970. Zero is no place.
type deadPlace struct{ diedAt, taskID int64 }

func (p deadPlace) String() string {
	if p == (deadPlace{}) {
		return ""
	}
	return formatPlace(string(StateDead), p.diedAt, p.taskID)
}

func parseDeadPlace(text string) (p deadPlace, err error) {
	args, err := parsePlace(string(StateDead), text)
	if err == nil && text != "" {
		p = deadPlace{args[0].(int64), args[1].(int64)}
	}
	return p, err
}
