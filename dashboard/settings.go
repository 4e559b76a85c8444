package dashboard

import (
	"net/http"
	"net/url"
	"strings"
)

// The cookies of the viewer's settings. Without a path they are for the directory of the dashboard.
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

// settings sets a cookie by a button in the header of a page, and leads back to the page.
func (v *view) settings() error {
	form := v.r.PostForm
	set := func(name, value string) {
		http.SetCookie(v.w, &http.Cookie{
			Name: name, Value: value, MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: v.r.TLS != nil,
		})
	}
	switch theme, updates := form.Get("theme"), form.Get("updates"); {
	case theme == "auto" || theme == "light" || theme == "dark":
		set(themeCookie, theme)
	case updates == "on" || updates == "off":
		set(updatesCookie, updates)
	default:
		return badRequest("There is no such setting.")
	}
	name, query, _ := strings.Cut(strings.TrimPrefix(form.Get("back"), "./"), "?")
	q, err := url.ParseQuery(query)
	if v.site.routes[name].page == nil || err != nil || name == "payload" {
		return v.redirect("./")
	}
	return v.redirect(address(name, q))
}
