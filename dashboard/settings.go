package dashboard

import (
	"net/http"
	"net/url"
	"strings"
)

// updatesCookie is "off" if the viewer's pages stay as they were loaded. Without a path it is for the
// directory of the dashboard.
const updatesCookie = "outbox_updates"

// settings sets the cookie by the button in the header of a page, and leads back to the page.
func (v *view) settings() error {
	updates := v.r.PostForm.Get("updates")
	if updates != "on" && updates != "off" {
		return badRequest("There is no such setting.")
	}
	http.SetCookie(v.w, &http.Cookie{Name: updatesCookie, Value: updates, MaxAge: 365 * 24 * 3600, HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: v.r.TLS != nil})
	name, query, _ := strings.Cut(strings.TrimPrefix(v.r.PostForm.Get("back"), "./"), "?")
	q, err := url.ParseQuery(query)
	if v.site.routes[name].page == nil || err != nil {
		return v.redirect("./")
	}
	return v.redirect(address(name, q))
}
