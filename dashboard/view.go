package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// site is shared by all requests.
type site struct {
	db        *sql.DB
	client    *admin.Client
	config    Config
	codecs    *codec.Set // of the config; nil: none
	log       *slog.Logger
	routes    map[string]route
	snapshots cache[*snapshot]
	samples   cache[map[string][]admin.Sample]

	nameless sync.Once // warns of rights without a name
}

// route is a page, or an action, or both.
type route struct {
	page     func(*view) error // for GET and HEAD
	act      func(*view) error // for POST
	operate  bool              // needs AccessOperate
	payloads bool              // needs AccessViewPayloads
}

// view is one request. Its exported fields are for the templates of its page.
type view struct {
	site   *site
	w      http.ResponseWriter
	r      *http.Request
	access Access
	limit  time.Duration // of its statements
	logged bool          // the log has its error

	changed bool // an action may have changed something

	Actor   string
	Updates bool
	Title   string
	Section string // in the navigation
	Dead    int64  // dead letters, for the navigation
	Notice  string
	Warning string
	Origin  admin.Origin // of a copy: why relays run nothing, and what to do
	Self    string       // this page, to be loaded again
	Now     time.Time    // by PostgreSQL's clock
	Data    any

	CSRFInput template.HTML // the field of the app's token, for each form

	Live  bool          // the page updates itself
	Body  template.HTML // the part that does
	Have  string        // its hash
	Again bool          // another try may succeed
	Back  string        // the page of a form that failed
}

func (v *view) MayOperate() bool { return v.access.has(AccessOperate) }
func (v *view) MayPayload() bool { return v.access.has(AccessViewPayloads) }
func (v *view) ReadOnly() bool   { return v.site.config.ReadOnly }

// authorize asks the app, and reports whether the request may see anything.
func (v *view) authorize() bool {
	user := v.site.config.Authorize(v.r)
	v.access, v.Actor = user.Access, user.Name
	if v.access &= AccessViewPayloads | AccessOperate; !v.access.has(AccessView) {
		return false
	}
	if v.access != AccessView && (v.Actor == "" || len(v.Actor) > 256 || !utf8.ValidString(v.Actor) ||
		strings.ContainsRune(v.Actor, 0)) {
		v.site.nameless.Do(func() {
			v.site.log.Warn("outbox: dashboard: Authorize gives Operate or ViewPayloads without a name " +
				"for the audit log and the log (1 to 256 bytes of UTF-8); they are denied")
		})
		v.access = AccessView
	}
	if v.site.config.ReadOnly {
		v.access &^= AccessOperate &^ AccessView
	}
	return true
}

// address is that of a page, relative to any other, without the notice of an action.
func address(page string, q url.Values) string {
	q.Del("ok")
	q.Del("n")
	if len(q) == 0 {
		return "./" + page
	}
	return "./" + page + "?" + q.Encode()
}

// htmx reports whether the page's script asks for a part of the page.
func (v *view) htmx() bool { return v.r.Header.Get("HX-Request") == "true" }

// show writes the page or, for its script, the part that updates itself, if that has changed.
func (v *view) show(status int, page, title string, data any) error {
	v.Title, v.Data = title, data
	if status < 500 && (v.Warning == "" || !v.htmx()) { // no second try where the first one failed
		if s, err := v.snapshot(); err == nil {
			v.Dead = s.count("", admin.StateDead)
		}
	}
	v.CSRFInput = v.csrfInput()
	t := pages[page]
	var live, out bytes.Buffer
	for _, part := range []string{"copied", "live"} {
		if err := t.ExecuteTemplate(&live, part, v); err != nil {
			return fmt.Errorf("dashboard: the page %s: %w", page, err)
		}
	}
	v.Body = template.HTML(live.String())
	v.Have = hash(strings.ReplaceAll(live.String(), string(v.CSRFInput), "")) // tokens may be masked anew for each page
	part := "page"
	switch {
	case v.htmx() && v.r.Method == http.MethodPost: // it takes the place of a form
		part = "body"
	case v.htmx() && v.r.Header.Get("Outbox-Have") == v.Have:
		v.w.WriteHeader(http.StatusNoContent)
		return nil
	case v.htmx():
		part = "wrapped"
	}
	if err := t.ExecuteTemplate(&out, part, v); err != nil {
		return fmt.Errorf("dashboard: the page %s: %w", page, err)
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = v.w.Write(out.Bytes()) // the viewer has gone
	}
	return nil
}

// csrfInput asks the app for its token.
func (v *view) csrfInput() template.HTML {
	if v.site.config.CSRFField == nil {
		return ""
	}
	name, value := v.site.config.CSRFField(v.r)
	if name == "" {
		return ""
	}
	return template.HTML(`<input type="hidden" name="` + template.HTMLEscapeString(name) +
		`" value="` + template.HTMLEscapeString(value) + `">`)
}

// redirect answers an action.
func (v *view) redirect(to string) error {
	v.w.Header().Set("Location", to)
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// fail answers with a page about the error: what happened, what to do, and a way back. The text of
// the database is only in the log.
func (v *view) fail(err error) {
	p := v.explain(err)
	if p.status >= 500 {
		if v.r.Context().Err() == context.Canceled {
			return // the client has gone
		}
		if !v.logged {
			v.site.log.Error("outbox: dashboard: request failed", "path", v.r.URL.Path, "error", pgerr.WithoutDSN(err))
		}
	}
	v.Warning, v.Live, v.Notice = p.text, false, ""
	v.Again = p.status >= 500 && v.r.Method != http.MethodPost
	if v.r.Method == http.MethodPost {
		v.Back = v.cameFrom()
		if !v.changed {
			v.Warning += " Nothing was changed."
		}
	}
	status := p.status
	if v.htmx() {
		v.Live = v.Again && v.Updates && !tooLong(err) // no slow statement every 2 s
		v.w.Header().Set("HX-Reswap", "outerHTML")
		status = http.StatusOK // or the script drops it
	}
	if err := v.show(status, "problem.html", cmp.Or(p.title, http.StatusText(p.status)), nil); err != nil {
		v.site.log.Error("outbox: dashboard: request failed", "path", v.r.URL.Path, "error", err)
		http.Error(v.w, "The page cannot be shown. The log of this server has the reason.",
			http.StatusInternalServerError)
	}
}

// cameFrom is the page whose form was sent.
func (v *view) cameFrom() string {
	from, err := url.Parse(v.r.Referer())
	if err != nil || from.Host != v.r.Host {
		return ""
	}
	name := from.Path[strings.LastIndex(from.Path, "/")+1:] // all pages are in one directory
	if name == "" || v.site.routes[name].page == nil {
		return "" // the overview has its own link
	}
	return address(name, from.Query())
}

const tookTooLong = "57014" // query_canceled, as by statement_timeout

func tooLong(err error) bool {
	return pgerr.Code(err) == tookTooLong || errors.Is(err, context.DeadlineExceeded)
}

// problem is an error of a request, with the texts of its page.
type problem struct {
	status int
	title  string // "": that of the status
	text   string
}

func (p problem) Error() string { return p.text }

var (
	errNotFound = problem{http.StatusNotFound, "", "There is no such page."}
	errReadOnly = problem{http.StatusForbidden, "", "This dashboard is read-only."}
	errRole     = problem{http.StatusForbidden, "", "Your role may not do this."}
	errMethod   = problem{http.StatusMethodNotAllowed, "", "This address does not allow this method."}
)

// badRequest is a problem of a query or a form.
func badRequest(text string) problem { return problem{http.StatusBadRequest, "", text} }

func (v *view) explain(err error) problem {
	const unavailable, broken = http.StatusServiceUnavailable, http.StatusInternalServerError
	var p problem
	code, fault := pgerr.Code(err), pgerr.Of(err)
	schema := cmp.Or(v.site.config.Schema, "outbox")
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, admin.ErrNotFound):
		return problem{http.StatusNotFound, "", "There is no such task: it is finished and its type keeps none, " +
			"was canceled, or never was."}
	case errors.Is(err, admin.ErrRunning):
		return problem{http.StatusConflict, "", "The task runs, or another transaction has locked it. " +
			"Try again when it waits, or is a dead letter."}
	case errors.Is(err, outbox.ErrInvalidPayload), errors.Is(err, outbox.ErrPayloadTooLarge):
		return badRequest("The payload is refused: " + err.Error() + ".") // which does not quote it
	case errors.Is(err, outbox.ErrInvalidType):
		return badRequest("This is no valid name of a task type.")
	case errors.Is(err, outbox.ErrInvalidOption):
		return badRequest("The address or the form has an invalid value.")
	case errors.Is(err, outbox.ErrCommitUnknown):
		return problem{unavailable, "The outcome is unknown", "The connection broke at the commit. The action was " +
			"done as a whole or not at all: look before you repeat it."}
	case strings.HasPrefix(code, "28"), fault == pgerr.Server && (code == "42501" || code == "3D000"):
		return problem{unavailable, "PostgreSQL refuses the login", "Mend the user, the password or the database " +
			"of this dashboard's pool, or pg_hba.conf. The log of this server has the reason."}
	case code == "53300":
		return problem{unavailable, "PostgreSQL has no connection left", "Try again in a moment. If it lasts, " +
			"bound the pools of all apps, or raise max_connections."}
	case code == "25006":
		return problem{unavailable, "PostgreSQL takes no writes", "The server is a standby, or " +
			"default_transaction_read_only is on. Pages work and actions do not: lead this dashboard to the primary."}
	case fault == pgerr.Server && errors.Is(err, context.DeadlineExceeded):
		return problem{unavailable, "No connection in time", "PostgreSQL does not answer, or all connections of " +
			"this dashboard's pool are in use. Try again in a moment."}
	case tooLong(err):
		return problem{unavailable, "It took too long", fmt.Sprintf("This took longer than %v and was stopped. "+
			"If you search, search for less: a type, or an age. Counts take longer with each enqueue while no relay "+
			"works: run one.", cmp.Or(v.limit, v.site.config.StatementTimeout))}
	case fault == pgerr.Server, fault == pgerr.Connection:
		return problem{unavailable, "PostgreSQL is unavailable", "This dashboard has no connection to it. Try again " +
			"when the server is back. The log of this server has the reason."}
	case code == "55P03":
		return problem{unavailable, "It is locked", "Another transaction holds a lock on it. Try again in a moment."}
	case code == "42501":
		return problem{broken, "The database role lacks a right", fmt.Sprintf("The database role of this dashboard "+
			"may not do this. It needs to be a member of %s_operator, or of %[1]s_worker to see payloads: "+
			"schema.GrantRoles, or outbox roles apply, makes them.", schema)}
	case code == "42P01" || code == "42703" || code == "42883" || code == "3F000":
		return problem{broken, "The schema does not fit", fmt.Sprintf("There is no outbox, or its schema is older "+
			"than this dashboard: run schema.Migrate, or outbox migrate up. The name of the schema is %s.", schema)}
	}
	return problem{broken, "The request failed", "PostgreSQL refused this. The log of this server has the reason."}
}
