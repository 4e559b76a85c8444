package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/inspect"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/relay"
)

// view is one request, and what its page's templates see.
type view struct {
	h      *Handler
	w      http.ResponseWriter
	r      *http.Request
	access Access
	limit  time.Duration // of the statements that it waits for

	Actor    string
	Theme    string // auto, light, dark
	Updates  bool
	Template string // a file of templates
	Title    string
	Section  string // in the navigation
	Notice   string
	Warning  string
	Self     string    // this page, to be loaded again
	Now      time.Time // by PostgreSQL's clock
	Data     any

	Live  bool     // keeps itself up to date: by its live part as a whole,
	Parts []string // or by elements with these ids in it,
	Shape string   // as long as this, which says what rows there are, is the same;
	Holds bool     // with this the rows stay when it is another, as buttons are on them, and the page says so,
	Stale bool     // which is now
	Have  string   // a hash of the live part
	Again bool     // it may go better if it is asked for again
}

func (v *view) MayOperate() bool  { return v.access.has(Operate) }
func (v *view) MayPayload() bool  { return v.access.has(ViewPayloads) }
func (v *view) ReadOnly() bool    { return v.h.config.ReadOnly }
func (v *view) OOB() string       { return "#" + strings.Join(v.Parts, ",#") }
func (v *view) Static() staticURL { return urls }

// authorize asks the app, and reports whether the request may see anything.
func (v *view) authorize() bool {
	v.access, v.Actor = v.h.config.Authorize(v.r)
	if v.access &= ViewPayloads | Operate; !v.access.has(View) {
		return false
	}
	if v.access != View && (v.Actor == "" || len(v.Actor) > 256 || !utf8.ValidString(v.Actor) || strings.ContainsRune(v.Actor, 0)) {
		v.h.nameless.Do(func() {
			v.h.log.Warn("outbox: dashboard: Authorize gives Operate or ViewPayloads without a name for the audit log and the log (1 to 256 bytes of UTF-8); they are denied")
		})
		v.access = View
	}
	if v.h.config.ReadOnly {
		v.access &^= Operate &^ View
	}
	return true
}

// Errors of requests.
var (
	errNotFound  = errors.New("not found")
	errMethod    = errors.New("method not allowed")
	errForbidden = errors.New("forbidden")
	errAlive     = errors.New("the relay is alive")
)

// badRequest is what is wrong with a query or a form, in words for the page.
type badRequest string

func (b badRequest) Error() string { return string(b) }

func (v *view) serve(name string) {
	ctx, cancel := context.WithTimeout(v.r.Context(), 3*v.h.config.StatementTimeout)
	defer cancel()
	v.r = v.r.WithContext(ctx)
	to, found := v.h.routes[name]
	if !found {
		v.fail(errNotFound)
		return
	}
	v.Section, v.Now = name, time.Now()
	v.Self = "./" + name
	if q := kept(v.r.URL.Query(), to.params); len(q) > 0 {
		v.Self += "?" + q.Encode()
	}
	var err error
	switch method := v.r.Method; {
	case (method == http.MethodGet || method == http.MethodHead) && to.page != nil:
		v.Notice = notice(v.r.URL.Query())
		err = to.page(v)
	case method == http.MethodPost && to.act != nil:
		if to.operate && !v.MayOperate() {
			err = errForbidden
			break
		}
		v.r.Body = http.MaxBytesReader(v.w, v.r.Body, 256<<10)
		if err = v.r.ParseForm(); err != nil {
			err = badRequest("The form could not be read.")
			break
		}
		v.Self = "./"
		err = to.act(v)
	default:
		err = errMethod
		var allow []string
		if to.page != nil {
			allow = append(allow, "GET", "HEAD")
		}
		if to.act != nil {
			allow = append(allow, "POST")
		}
		v.w.Header().Set("Allow", strings.Join(allow, ", "))
	}
	if err != nil {
		v.fail(err)
	}
}

// kept are the values of the query that the page knows, one of each.
func kept(q url.Values, params []string) url.Values {
	out := url.Values{}
	for _, p := range params {
		if s := q.Get(p); s != "" {
			out.Set(p, s)
		}
	}
	return out
}

// htmx reports whether the page's script asks, for a part of the page.
func (v *view) htmx() bool { return v.r.Header.Get("HX-Request") == "true" }

// show writes the page, or the part of it that has changed.
func (v *view) show(status int) error {
	t := pages[v.Template]
	v.Stale = v.Holds && v.htmx() && v.r.Header.Get("Outbox-Shape") != v.Shape
	var live bytes.Buffer
	if err := t.ExecuteTemplate(&live, "live", v); err != nil {
		return fmt.Errorf("dashboard: the page %s: %w", v.Template, err)
	}
	v.Have = hash(live.String())
	var out bytes.Buffer
	names := []string{"top", "wrap", "", "wrapped", "bottom"}
	if v.htmx() && v.r.Method != http.MethodPost {
		if v.Parts != nil && !v.Holds && v.r.Header.Get("Outbox-Shape") != v.Shape {
			v.w.Header().Set("HX-Refresh", "true") // there are other rows than before
			v.w.WriteHeader(http.StatusOK)
			return nil
		}
		if v.Parts == nil && v.r.Header.Get("Outbox-Have") == v.Have {
			v.w.WriteHeader(http.StatusNoContent)
			return nil
		}
		names = names[1:4]
	} else if v.htmx() {
		names = names[2:3]
	}
	for _, name := range names {
		if name == "" {
			out.Write(live.Bytes())
		} else if err := t.ExecuteTemplate(&out, name, v); err != nil {
			return fmt.Errorf("dashboard: the page %s: %w", v.Template, err)
		}
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = v.w.Write(out.Bytes()) // the viewer has gone
	}
	return nil
}

// redirect answers an action: the page that it leads to says what was done.
func (v *view) redirect(page string, q url.Values) error {
	to := "./" + page
	if len(q) > 0 {
		to += "?" + q.Encode()
	}
	v.w.Header().Set("Location", to)
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// fail answers with a page that says what is wrong, and nothing of what the database said of it, which the log has.
func (v *view) fail(err error) {
	status, text := v.explain(err)
	if status >= 500 {
		if v.r.Context().Err() == context.Canceled {
			return // nobody waits for it
		}
		v.h.log.Error("outbox: dashboard: request failed", "path", v.r.URL.Path, "error", pgerr.WithoutDSN(err))
	}
	v.Template, v.Title, v.Warning, v.Data, v.Live, v.Parts, v.Holds, v.Notice = "problem.html", http.StatusText(status), text, nil, false, nil, false, ""
	v.Again = status >= 500 && v.r.Method != http.MethodPost
	if v.htmx() {
		v.Live = v.Again && v.Updates && !tooLong(err) // what takes too long is not to be tried every 2 s
		v.w.Header().Set("HX-Reswap", "outerHTML")
		status = http.StatusOK // or the script drops it
	}
	if err := v.show(status); err != nil {
		v.h.log.Error("outbox: dashboard: request failed", "path", v.r.URL.Path, "error", err)
		http.Error(v.w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	}
}

const tookTooLong = "57014" // query_canceled, as by statement_timeout

func tooLong(err error) bool {
	return pgerr.Code(err) == tookTooLong || errors.Is(err, context.DeadlineExceeded)
}

func (v *view) explain(err error) (status int, text string) {
	var bad badRequest
	code := pgerr.Code(err)
	switch {
	case errors.As(err, &bad):
		return http.StatusBadRequest, string(bad)
	case errors.Is(err, errNotFound):
		return http.StatusNotFound, "There is no such page."
	case errors.Is(err, inspect.ErrNotFound):
		return http.StatusNotFound, "There is no such task: it is finished and its type keeps none, was canceled, or never was."
	case errors.Is(err, relay.ErrUnknownSchedule):
		return http.StatusNotFound, "There is no such schedule."
	case errors.Is(err, errMethod):
		return http.StatusMethodNotAllowed, "This cannot be asked for in this way."
	case errors.Is(err, errForbidden) && v.h.config.ReadOnly:
		return http.StatusForbidden, "This dashboard is read-only."
	case errors.Is(err, errForbidden):
		return http.StatusForbidden, "Your role may not do this."
	case errors.Is(err, errAlive):
		return http.StatusConflict, "This relay is alive. Only the leases of a dead one can be handed back."
	case errors.Is(err, inspect.ErrInvalid), errors.Is(err, deadletter.ErrInvalid), errors.Is(err, audit.ErrInvalid), errors.Is(err, outbox.ErrInvalidType),
		errors.Is(err, outbox.ErrInvalidOption):
		return http.StatusBadRequest, "The address or the form has a value that cannot be."
	case errors.Is(err, outbox.ErrCommitUnknown):
		return http.StatusServiceUnavailable, "The connection broke at the commit. It was done or not, as a whole: look before you do it again."
	case tooLong(err):
		return http.StatusServiceUnavailable, fmt.Sprintf("This took longer than %v and was stopped. If you search, search for less: a type, or an age.", cmp.Or(v.limit, v.h.config.StatementTimeout))
	case code == "55P03":
		return http.StatusServiceUnavailable, "Another transaction has it locked. Try again in a moment."
	case code == "42501":
		return http.StatusInternalServerError, "The database role of this dashboard may not do this. It needs to be a member of outbox_operator, or of outbox_worker to see payloads."
	case code == "42P01" || code == "42703" || code == "42883" || code == "3F000":
		return http.StatusInternalServerError, "The outbox is not there, or its schema is older than this dashboard: schema.Migrate makes it right."
	}
	return http.StatusInternalServerError, "PostgreSQL did not do this. The log of this server has the reason."
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}
