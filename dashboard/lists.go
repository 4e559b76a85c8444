package dashboard

import (
	"context"
	"database/sql"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/inspect"
)

func (h *Handler) schedules(v *view) error {
	var d struct{ Schedules []inspect.Schedule }
	err := v.read(func(ctx context.Context, tx *sql.Tx) (err error) {
		d.Schedules, err = inspect.Schedules(ctx, tx, inspect.Schema(h.config.Schema))
		return err
	})
	if err != nil {
		return err
	}
	v.Template, v.Title, v.Live, v.Data = "schedules.html", "Schedules", true, d
	return v.show(200)
}

func (h *Handler) relays(v *view) error {
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	v.Template, v.Title, v.Live, v.Data = "relays.html", "Relays", true, struct{ Relays []relayRow }{relayRows(s)}
	return v.show(200)
}

func (h *Handler) audit(v *view) error {
	var d struct {
		Entries []audit.Entry
		Next    string
		First   bool
	}
	before := int64(0)
	if s := v.r.URL.Query().Get("before"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 {
			return badRequest("The address names no page of the audit log.")
		}
		before = n
	}
	err := v.read(func(ctx context.Context, tx *sql.Tx) (err error) {
		d.Entries, err = audit.List(ctx, tx, before, pageSize+1, audit.Schema(h.config.Schema))
		return err
	})
	if err != nil {
		return err
	}
	if len(d.Entries) > pageSize {
		d.Entries = d.Entries[:pageSize]
		d.Next = "./audit?before=" + strconv.FormatInt(d.Entries[pageSize-1].EntryID, 10)
	}
	d.First = before == 0
	v.Template, v.Title, v.Live, v.Data = "audit.html", "Audit log", true, d
	return v.show(200)
}

// Cookies of what a viewer has chosen. Without a path they are for the directory of the dashboard.
const (
	themeCookie   = "outbox_theme"
	updatesCookie = "outbox_updates"
)

func (v *view) readSettings() {
	if c, err := v.r.Cookie(themeCookie); err == nil && (c.Value == "light" || c.Value == "dark") {
		v.Theme = c.Value
	}
	if c, err := v.r.Cookie(updatesCookie); err == nil && c.Value == "off" {
		v.Updates = false
	}
}

// settings notes what a viewer chose in the header of a page, and leads back to it.
func (h *Handler) settings(v *view) error {
	form := v.r.PostForm
	set := func(name, value string) {
		http.SetCookie(v.w, &http.Cookie{Name: name, Value: value, MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: v.r.TLS != nil})
	}
	switch theme := form.Get("theme"); theme {
	case "":
	case "auto", "light", "dark":
		set(themeCookie, theme)
	default:
		return badRequest("There is no such theme.")
	}
	switch updates := form.Get("updates"); updates {
	case "":
	case "on", "off":
		set(updatesCookie, updates)
	default:
		return badRequest("Updates are on or off.")
	}
	name, query, _ := strings.Cut(strings.TrimPrefix(form.Get("back"), "./"), "?")
	to, known := h.routes[name]
	q, err := url.ParseQuery(query)
	if !known || to.page == nil || err != nil || name == "payload" {
		return v.redirect("", nil)
	}
	return v.redirect(name, kept(q, to.params))
}
