package dashboard

import (
	"net/url"
	"strconv"
)

// notices are the texts that an action's redirect can ask the next page for.
var notices = map[string]struct{ none, some string }{
	"paused":           {"", "The type is paused. Its running tasks go on."},
	"resumed":          {"", "The type is resumed."},
	"canceled":         {"The task has gone meanwhile; nothing changed.", "The task is canceled."},
	"requested":        {"", "The task runs. Its relay has been asked to end it."},
	"run-now":          {"The task is no longer scheduled; nothing changed.", "The task is due now."},
	"redriven":         {"It was redriven or purged meanwhile; nothing changed.", "The dead letter is a task again."},
	"key-held":         {"0 redriven, 1 skipped: another task holds its unique key.", ""},
	"schedule-paused":  {"", "The schedule is paused: it skips its firings."},
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

// done leads to a page with the notice of an action, unless the action failed.
func (v *view) done(err error, page string, q url.Values, notice string, n int64) error {
	if err != nil {
		return err
	}
	q.Set("ok", notice)
	q.Set("n", strconv.FormatInt(n, 10))
	return v.redirect("./" + page + "?" + q.Encode())
}
