// Package dashboard is an http.Handler that shows an outbox and lets operators work on it, for a mux of the app's own: counts and charts by
// type, tasks wherever they are, dead letters, schedules, relays, and who did what.
//
//	d, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox", Authorize: func(r *http.Request) (dashboard.Access, string) {
//		user := userOf(r) // by your own session
//		if !user.Admin {
//			return 0, ""
//		}
//		return dashboard.ViewPayloads | dashboard.Operate, user.Email
//	}})
//	mux.Handle("/outbox/", d) // with chi r.Mount("/outbox", d)
//
// Pages are rendered by the server, show what is there at any size of the tables at the same cost, and work without script; with it they
// keep themselves up to date. docs/tools/dashboard.md says what it costs and what protects it.
package dashboard

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
)

// Access is what a request may do: zero is nothing, and the constants can be added up by |.
type Access uint8

// The rights. Who has any of them sees all pages; the texts of errors are on these.
const (
	View         Access = 1
	ViewPayloads Access = View | 2 // payloads, headers and keys as well
	Operate      Access = View | 4 // pause, cancel, run now, redrive, purge, hand back
)

func (a Access) has(b Access) bool { return a&b == b }

// Config says how the dashboard works. The zero Config denies everything, as it has no Authorize.
type Config struct {
	// Authorize says what a request may do, and who makes it, as the audit log is to name them. It is called for each request, static
	// files included, and must be safe for concurrent use. Nil: every request is denied. Operate and ViewPayloads without a name of
	// 1 to 256 bytes of UTF-8 are denied.
	Authorize func(*http.Request) (Access, string)

	// Schema is the PostgreSQL schema of the outbox; "" is "outbox".
	Schema string

	// ReadOnly denies Operate to everybody.
	ReadOnly bool

	// BasePath is what the paths of requests begin with, like "/outbox", where no http.StripPrefix takes it away; "" is nothing. Links
	// are relative, so behind a proxy that adds a prefix nothing has to be said.
	BasePath string

	// StatementTimeout bounds each statement of a page; 0 is 5 s. A page whose statement takes longer says so.
	StatementTimeout time.Duration

	// Logger gets errors, one line for each action, and one for each payload that is shown, without the payload; nil is slog.Default().
	Logger *slog.Logger
}

// Handler is the dashboard. It is safe for concurrent use, and starts no goroutine.
type Handler struct {
	db       *sql.DB
	config   Config
	log      *slog.Logger
	cross    *http.CrossOriginProtection
	routes   map[string]route
	shared   snapshots
	charts   charts
	patience time.Duration // how long a search looks before it answers with what it has

	nameless sync.Once // warns of rights that were given to no name
}

// New makes a dashboard of the outbox in db, which it sends nothing yet. A role that is a member of outbox_operator can do all of it but show
// payloads of tasks that are not dead (docs/security.md). The pool needs one connection for each request under way. The error names all
// that is wrong in c.
func New(db *sql.DB, c Config) (*Handler, error) {
	if c.Schema == "" {
		c.Schema = outbox.DefaultSchema
	}
	if c.StatementTimeout == 0 {
		c.StatementTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var errs []error
	if db == nil {
		errs = append(errs, errors.New("dashboard: the *sql.DB is nil"))
	}
	if !outbox.ValidSchema(c.Schema) {
		errs = append(errs, fmt.Errorf("dashboard: Config.Schema: %q: use a lower-case name like outbox, letters, digits and _ only, at most 63 bytes", c.Schema))
	}
	if c.BasePath = strings.TrimSuffix(c.BasePath, "/"); c.BasePath != "" && (c.BasePath[0] != '/' || path.Clean(c.BasePath) != c.BasePath) {
		errs = append(errs, fmt.Errorf("dashboard: Config.BasePath: %q: write it like /outbox", c.BasePath))
	}
	if c.StatementTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("dashboard: Config.StatementTimeout: %v: must be 1ms at least, or 0 for 5s", c.StatementTimeout))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	h := &Handler{db: db, config: c, log: c.Logger, cross: http.NewCrossOriginProtection(), patience: 75 * time.Millisecond}
	h.routes = h.newRoutes()
	return h, nil
}

// route is a page, what it takes from the query, or an action.
type route struct {
	params  []string
	page    func(*view) error // for GET and HEAD
	act     func(*view) error // for POST
	operate bool              // act needs Operate
}

func (h *Handler) newRoutes() map[string]route {
	return map[string]route{
		"":          {page: h.overview, params: []string{"range"}},
		"type":      {page: h.taskType, params: []string{"name", "state", "range", "after"}},
		"task":      {page: h.task, params: []string{"id", "payload"}},
		"payload":   {page: h.payload, params: []string{"id"}},
		"dead":      {page: h.dead, params: []string{"type", "reason", "error", "older", "after"}},
		"schedules": {page: h.schedules},
		"relays":    {page: h.relays},
		"audit":     {page: h.audit, params: []string{"before"}},
		"bulk":      {page: h.bulk, act: h.doBulk, operate: true, params: []string{"do", "type", "reason", "error", "older", "until", "total", "more", "done", "left"}},
		"pause":     {act: h.pause, operate: true},
		"resume":    {act: h.pause, operate: true},
		"cancel":    {page: h.askCancel, act: h.cancel, operate: true, params: []string{"id"}},
		"run-now":   {act: h.runNow, operate: true},
		"redrive":   {act: h.redrive, operate: true},
		"schedule":  {act: h.schedule, operate: true},
		"hand-back": {act: h.handBack, operate: true},
		"settings":  {act: h.settings},
	}
}

// What the pages may load: this dashboard's own files, and nothing else; no inline script or style, no frame around them, no form that leads away.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

const noAuthorizer = `This dashboard shows nothing to anybody, because it has not been told who may see it.

Set dashboard.Config.Authorize to a function that returns, for a request, what it may do
(dashboard.View, dashboard.ViewPayloads, dashboard.Operate) and who makes it.
`

// ServeHTTP serves all pages and actions. An unsafe request from another origin is refused with 403, as by http.CrossOriginProtection.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", contentPolicy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "same-origin")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	if h.config.Authorize == nil {
		http.Error(w, noAuthorizer, http.StatusForbidden)
		return
	}
	if err := h.cross.Check(r); err != nil {
		http.Error(w, "This request was made by a page of another origin, and is refused.", http.StatusForbidden)
		return
	}
	v := &view{h: h, w: w, r: r, Theme: "auto", Updates: true}
	if !v.authorize() {
		head.Set("HX-Refresh", "true") // a page that keeps itself up to date is to show this
		http.Error(w, "You may not see this dashboard.", http.StatusForbidden)
		return
	}
	name, below := strings.CutPrefix(r.URL.Path, h.config.BasePath)
	if below && name == "" { // relative links need the slash
		head.Set("Location", "./"+path.Base(r.URL.Path)+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if !below || name[0] != '/' {
		v.fail(errNotFound)
		return
	}
	if f, ok := static[name[1:]]; ok {
		f.serve(w, r)
		return
	}
	v.readSettings()
	v.serve(name[1:])
}
