package dashboard

import (
	"net/http"
	"net/url"
	"strings"
)

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
func (v *view) settings() error {
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
	to, known := v.routes[name]
	q, err := url.ParseQuery(query)
	if !known || to.page == nil || err != nil || name == "payload" {
		return v.redirect("", nil)
	}
	return v.redirect(name, kept(q, to.params))
}
