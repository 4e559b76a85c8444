package dashboard

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox/admin"
)

// site is what all requests share.
type site struct {
	db       *sql.DB
	client   *admin.Client
	config   Config
	log      *slog.Logger
	routes   map[string]route
	shared   snapshots
	charts   charts
	patience time.Duration // how long a search looks before it answers with what it has

	nameless sync.Once // warns of rights that were given to no name
}

// route is a page, what it takes from the query, or an action.
type route struct {
	params  []string
	page    func(*view) error // for GET and HEAD
	act     func(*view) error // for POST
	operate bool              // act needs Operate
}

// view is one request, and what its page's templates see.
type view struct {
	*site
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
func (v *view) ReadOnly() bool    { return v.config.ReadOnly }
func (v *view) OOB() string       { return "#" + strings.Join(v.Parts, ",#") }
func (v *view) Static() staticURL { return urls }

// authorize asks the app, and reports whether the request may see anything.
func (v *view) authorize() bool {
	v.access, v.Actor = v.config.Authorize(v.r)
	if v.access &= ViewPayloads | Operate; !v.access.has(View) {
		return false
	}
	if v.access != View && (v.Actor == "" || len(v.Actor) > 256 || !utf8.ValidString(v.Actor) || strings.ContainsRune(v.Actor, 0)) {
		v.nameless.Do(func() {
			v.log.Warn("outbox: dashboard: Authorize gives Operate or ViewPayloads without a name for the audit log and the log (1 to 256 bytes of UTF-8); they are denied")
		})
		v.access = View
	}
	if v.config.ReadOnly {
		v.access &^= Operate &^ View
	}
	return true
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

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}
