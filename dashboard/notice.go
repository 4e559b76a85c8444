package dashboard

import (
	"net/url"
	"strconv"
)

// The notices that an action's redirect can ask the next page for.
var notices = map[string]struct{ none, some string }{
	"paused":           {"", "The type is paused. What runs goes on."},
	"resumed":          {"", "The type is resumed."},
	"canceled":         {"The task has gone meanwhile; nothing was changed.", "The task is canceled."},
	"requested":        {"", "The task runs. Its relay has been asked to end it."},
	"run-now":          {"The task is not scheduled any more; nothing was changed.", "The task is due now."},
	"redriven":         {"It was redriven or purged meanwhile; nothing was changed.", "The dead letter is a task again."},
	"key-held":         {"0 redriven, 1 skipped: another task holds its unique key.", ""},
	"schedule-paused":  {"", "The schedule is paused: it passes its firings over."},
	"schedule-resumed": {"", "The schedule is resumed."},
	"handed-back":      {"It held no leases.", "Its tasks were handed back."},
}

func notice(q url.Values) string {
	texts := notices[q.Get("ok")]
	if q.Get("n") == "0" {
		return texts.none
	}
	return texts.some
}

// done leads to the page that says what an action did, unless it failed.
func (v *view) done(err error, page string, q url.Values, what string, n int64) error {
	if err != nil {
		return err
	}
	q.Set("ok", what)
	q.Set("n", strconv.FormatInt(n, 10))
	return v.redirect("./" + page + "?" + q.Encode())
}
