// Package dashboard is an http.Handler for the app's mux that shows an outbox and lets operators
// act on it: counts and charts by type, tasks in any state, dead letters, schedules, relays, and the
// audit log.
//
//	d, err := dashboard.New(db, dashboard.Config{BasePath: "/outbox", Authorize: func(r *http.Request) dashboard.User {
//		user := userOf(r) // by your own session
//		if !user.Admin {
//			return dashboard.User{}
//		}
//		return dashboard.User{Name: user.Email, Access: dashboard.AccessViewPayloads | dashboard.AccessOperate}
//	}})
//	mux.Handle("/outbox/", d) // with chi r.Mount("/outbox", d)
//
// The server renders the pages, at the same cost for tables of any size. They work without script;
// with script they update themselves.
// https://github.com/txoutbox/outbox/blob/main/docs/tools/dashboard.md has its costs and its
// protection.
package dashboard

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// Handler serves the pages and the actions of the dashboard. It is safe for concurrent use, and
// starts no goroutine.
type Handler struct {
	site  *site
	cross *http.CrossOriginProtection
}

// New makes a dashboard of the outbox in db, without sending any SQL. If db's role is a member of
// outbox_operator, all of it works, except the payloads of tasks that are not dead
// (https://github.com/txoutbox/outbox/blob/main/docs/security.md). db needs one connection for each
// concurrent request. The error names a nil db and each invalid field of config.
func New(db *sql.DB, config Config) (*Handler, error) {
	client, err := admin.New(db, admin.Config{Schema: config.Schema})
	codecs, codecErr := config.codecs()
	errs := []error{config.check(), err, codecErr}
	cross := http.NewCrossOriginProtection()
	for _, origin := range config.TrustedOrigins {
		errs = append(errs, trust(cross, origin))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &site{db: db, client: client, config: config, log: config.Logger, routes: routes, codecs: codecs}
	return &Handler{site: s, cross: cross}, nil
}

// routes are the pages and the actions.
var routes = map[string]route{
	"":          {page: (*view).overview},
	"type":      {page: (*view).taskType},
	"task":      {page: (*view).task},
	"tasks":     {page: listPage(otherTasks)},
	"dead":      {page: listPage(deadLetters)},
	"schedules": {page: (*view).schedules},
	"relays":    {page: (*view).relays},
	"audit":     {page: (*view).audit},
	"bulk":      {page: (*view).askBulk, act: (*view).bulk, operate: true},
	"pause":     {act: change("pause", (*admin.Client).PauseType, "type", "paused"), operate: true},
	"resume":    {act: change("resume", (*admin.Client).ResumeType, "type", "resumed"), operate: true},
	"pause-schedule": {act: change("pause_schedule", (*admin.Client).PauseSchedule, "schedules", "schedule-paused"),
		operate: true},
	"resume-schedule": {act: change("resume_schedule", (*admin.Client).ResumeSchedule, "schedules", "schedule-resumed"),
		operate: true},
	"run-schedule": {act: change("run_schedule", (*admin.Client).RunScheduleNow, "schedules", "schedule-due"),
		operate: true},
	"cancel":      {page: (*view).askCancel, act: (*view).cancel, operate: true},
	"run-now":     {act: (*view).runNow, operate: true},
	"redrive":     {act: (*view).redrive, operate: true},
	"hand-back":   {act: (*view).handBack, operate: true},
	"settings":    {act: (*view).settings},
	"set-payload": {act: (*view).setPayload, operate: true, payloads: true},
}

// Pages load only the dashboard's own files. They have no inline script or style, no frame around
// them, and no form to another origin.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

const noAuthorizer = `This dashboard denies all requests, because it has no dashboard.Config.Authorize.

Set dashboard.Config.Authorize to a function that returns the user of a request:
the name, and the rights (dashboard.AccessView, dashboard.AccessViewPayloads, dashboard.AccessOperate).
`

const crossOrigin = `A page of another origin made this request. It is refused.

If the page is this dashboard's own, a proxy before this server has changed the header Host. Let it
keep Host, or name the page's origin, like https://admin.example.com, in
dashboard.Config.TrustedOrigins (outbox serve -trusted-origin).
`

// ServeHTTP serves all pages and actions. An unsafe request from another origin is refused with
// 403, as by http.CrossOriginProtection.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", contentPolicy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "same-origin")
	// Over plain http, where they send no Sec-Fetch-Site, browsers ignore the policy, and say so on
	// each page.
	if r.TLS != nil || r.Header.Get("Sec-Fetch-Site") != "" {
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
	}
	head.Set("Cache-Control", "no-store")
	if h.site.config.Authorize == nil {
		http.Error(w, noAuthorizer, http.StatusForbidden)
		return
	}
	if err := h.cross.Check(r); err != nil {
		http.Error(w, crossOrigin, http.StatusForbidden)
		return
	}
	v := &view{site: h.site, w: w, r: r, Updates: true}
	if !v.authorize() {
		head.Set("HX-Refresh", "true") // an open page loads itself again and shows this
		http.Error(w, "You may not see this dashboard.", http.StatusForbidden)
		return
	}
	name, below := strings.CutPrefix(r.URL.Path, h.site.config.BasePath)
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
	if c, err := r.Cookie(updatesCookie); err == nil && c.Value == "off" {
		v.Updates = false
	}
	v.serve(name[1:])
}

// maxForm is the most bytes of a form: of a payload of 256 kB each byte may take three.
const maxForm = 1 << 20

func (v *view) serve(name string) {
	ctx, cancel := context.WithTimeout(v.r.Context(), 3*v.site.config.StatementTimeout)
	defer cancel()
	v.r = v.r.WithContext(ctx)
	to, found := v.site.routes[name]
	if !found {
		v.fail(errNotFound)
		return
	}
	v.Section, v.Now = name, time.Now()
	v.Self = address(name, v.r.URL.Query())
	if err := v.do(to); err != nil {
		v.fail(err)
	}
}

// do shows the page of a route, or acts.
func (v *view) do(to route) error {
	do, allow := to.page, ""
	switch method := v.r.Method; {
	case (method == http.MethodGet || method == http.MethodHead) && to.page != nil:
		v.Notice = notice(v.r.URL.Query())
	case method == http.MethodPost && to.act != nil:
		v.Self = "./"
		do = to.act
	default:
		if to.page != nil {
			allow = "GET, HEAD"
		}
		if to.act != nil {
			allow = strings.TrimPrefix(allow+", POST", ", ")
		}
		v.w.Header().Set("Allow", allow)
		return errMethod
	}
	if to.operate && v.site.config.ReadOnly {
		return errReadOnly
	}
	if to.operate && !v.MayOperate() || to.payloads && !v.MayPayload() {
		return errRole
	}
	if v.r.Method == http.MethodPost {
		v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
		if err := v.r.ParseForm(); err != nil {
			return badRequest("The form could not be read.")
		}
	}
	return do(v)
}
