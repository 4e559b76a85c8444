package dashboard

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox/admin"
)

// site is shared by all requests.
type site struct {
	db        *sql.DB
	client    *admin.Client
	config    Config
	log       *slog.Logger
	routes    map[string]route
	snapshots cache[*snapshot]
	samples   cache[map[string][]admin.Sample]

	nameless sync.Once // warns of rights without a name
}

// route is a page, or an action, or both.
type route struct {
	page    func(*view) error // for GET and HEAD
	act     func(*view) error // for POST
	operate bool              // needs AccessOperate
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
			v.Dead = s.dead("")
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
