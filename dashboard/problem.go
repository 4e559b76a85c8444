package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// fail answers with a page about the error. The text of the database is only in the log.
func (v *view) fail(err error) {
	status, text := v.explain(err)
	title := http.StatusText(status)
	if status >= 500 {
		if v.r.Context().Err() == context.Canceled {
			return // the client has gone
		}
		if !v.logged {
			v.site.log.Error("outbox: dashboard: request failed", "path", v.r.URL.Path, "error", pgerr.WithoutDSN(err))
		}
	}
	v.Warning, v.Live, v.Notice = text, false, ""
	v.Again = status >= 500 && v.r.Method != http.MethodPost
	if v.htmx() {
		v.Live = v.Again && v.Updates && !tooLong(err) // no slow statement every 2 s
		v.w.Header().Set("HX-Reswap", "outerHTML")
		status = http.StatusOK // or the script drops it
	}
	if err := v.show(status, "problem.html", title, nil); err != nil {
		v.site.log.Error("outbox: dashboard: request failed", "path", v.r.URL.Path, "error", err)
		http.Error(v.w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	}
}

const tookTooLong = "57014" // query_canceled, as by statement_timeout

func tooLong(err error) bool {
	return pgerr.Code(err) == tookTooLong || errors.Is(err, context.DeadlineExceeded)
}

// problem is an error of a request, with the text of its page.
type problem struct {
	status int
	text   string
}

func (p problem) Error() string { return p.text }

var (
	errNotFound = problem{http.StatusNotFound, "There is no such page."}
	errReadOnly = problem{http.StatusForbidden, "This dashboard is read-only."}
	errRole     = problem{http.StatusForbidden, "Your role may not do this."}
	errMethod   = problem{http.StatusMethodNotAllowed, "This address does not allow this method."}
)

// badRequest is a problem of a query or a form.
func badRequest(text string) problem { return problem{http.StatusBadRequest, text} }

func (v *view) explain(err error) (status int, text string) {
	var p problem
	switch code := pgerr.Code(err); {
	case errors.As(err, &p):
		return p.status, p.text
	case errors.Is(err, admin.ErrNotFound):
		return http.StatusNotFound, "There is no such task: it is finished and its type keeps none, was canceled, or " +
			"never was."
	case errors.Is(err, outbox.ErrInvalidType), errors.Is(err, outbox.ErrInvalidOption):
		return http.StatusBadRequest, "The address or the form has an invalid value."
	case errors.Is(err, outbox.ErrCommitUnknown):
		return http.StatusServiceUnavailable,
			"The connection broke at the commit. The action was done as a whole or not " +
				"at all: look before you repeat it."
	case tooLong(err):
		return http.StatusServiceUnavailable, fmt.Sprintf("This took longer than %v and was stopped. "+
			"If you search, search for less: a type, or an age.", cmp.Or(v.limit, v.site.config.StatementTimeout))
	case code == "55P03":
		return http.StatusServiceUnavailable, "Another transaction holds a lock on it. Try again in a moment."
	case code == "42501":
		return http.StatusInternalServerError, "The database role of this dashboard may not do this. " +
			"It needs to be a member of outbox_operator, or of outbox_worker to see payloads."
	case code == "42P01" || code == "42703" || code == "42883" || code == "3F000":
		return http.StatusInternalServerError,
			"There is no outbox, or its schema is older than this dashboard: run schema.Migrate."
	}
	return http.StatusInternalServerError, "PostgreSQL refused this. The log of this server has the reason."
}
