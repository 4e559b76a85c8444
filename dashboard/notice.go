package dashboard

import (
	"fmt"
	"net/url"
	"strconv"
)

// The notices that an action's redirect can ask the next page for.
var notices = map[string][3]string{ // none, one, many
	"paused":           {"", "The type is paused. What runs goes on.", ""},
	"resumed":          {"", "The type is resumed.", ""},
	"canceled":         {"", "The task is canceled.", ""},
	"requested":        {"", "The task runs. Its relay has been asked to end it.", ""},
	"run-now":          {"The task is not scheduled any more; nothing was changed.", "The task is due now.", ""},
	"gone":             {"The task has gone meanwhile; nothing was changed.", "", ""},
	"redriven":         {"It was redriven or purged meanwhile; nothing was changed.", "The dead letter is a task again.", "%s dead letters are tasks again."},
	"schedule-paused":  {"", "The schedule is paused: it passes its firings over.", ""},
	"schedule-resumed": {"", "The schedule is resumed.", ""},
	"handed-back":      {"It held no leases.", "One task was handed back.", "%s tasks were handed back."},
	"none":             {"Nothing was chosen.", "", ""},
}

func notice(q url.Values) string {
	texts, known := notices[q.Get("ok")]
	if !known {
		return ""
	}
	n, _ := strconv.ParseInt(q.Get("n"), 10, 64)
	switch {
	case n <= 0:
		return texts[0]
	case n > 1 && texts[2] != "":
		return fmt.Sprintf(texts[2], number(n))
	}
	return texts[1]
}

// told is the query of a redirect that has the next page say what was done.
func told(q url.Values, what string, n int64) url.Values {
	if q == nil {
		q = url.Values{}
	}
	q.Set("ok", what)
	q.Set("n", strconv.FormatInt(n, 10))
	return q
}
