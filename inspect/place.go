package inspect

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A place is the text of a task's state and of what the tasks of that state are ordered by, as numbers: scheduled.1700000000000000.42. It says nothing that a Task
// does not.

// maxMicroseconds is in the year 9999, behind which no task is.
const maxMicroseconds = 253402300799999999

// places are the numbers of a place: the least and the greatest of each, and what stands for the beginning.
var places = map[State][]struct {
	min, max int64
	start    any
}{
	Ready:     {{math.MinInt16, math.MaxInt16, math.MinInt16}, {0, math.MaxInt16, -1}, {0, math.MaxInt64, 0}},
	Scheduled: {{-maxMicroseconds, maxMicroseconds, nil}, {0, math.MaxInt64, 0}},
	Leased:    {{0, math.MaxInt64, 0}},
	Waiting:   {{0, math.MaxInt64, 0}},
	Dead:      {{-maxMicroseconds, maxMicroseconds, nil}, {0, math.MaxInt64, int64(math.MaxInt64)}},
	Finished:  {{0, math.MaxInt64, int64(math.MaxInt64)}},
}

// placeOf is where a task is in the order of its state.
func placeOf(t Task) string {
	var numbers []int64
	switch t.State {
	case Ready:
		numbers = []int64{int64(t.Priority), int64(t.Attempt), t.TaskID}
	case Scheduled:
		numbers = []int64{t.RunAt.UnixMicro(), t.TaskID}
	case Dead:
		numbers = []int64{t.EndedAt.UnixMicro(), t.TaskID}
	default:
		numbers = []int64{t.TaskID}
	}
	text := string(t.State)
	for _, n := range numbers {
		text += "." + strconv.FormatInt(n, 10)
	}
	return text
}

// parsePlace returns the numbers of a place, or those of the beginning, as arguments of a statement.
func parsePlace(state State, text string) ([]any, error) {
	bounds := places[state]
	args := make([]any, len(bounds))
	fields := strings.Split(text, ".")
	for i, b := range bounds {
		if text == "" {
			args[i] = b.start
			continue
		}
		if len(fields) != len(bounds)+1 || fields[0] != string(state) {
			return nil, fmt.Errorf("%w: after %.60q: it is not the Next of a page of %s tasks", ErrInvalid, text, state)
		}
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil || n < b.min || n > b.max {
			return nil, fmt.Errorf("%w: after %.60q: it is not the Next of a page of %s tasks", ErrInvalid, text, state)
		}
		args[i] = n
	}
	return args, nil
}
