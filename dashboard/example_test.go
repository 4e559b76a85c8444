package dashboard_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func ExampleNew() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()

	d, err := dashboard.New(db, dashboard.Config{
		BasePath: "/outbox",
		Authorize: func(r *http.Request) dashboard.User {
			switch user := r.Header.Get("X-User"); user { // an app asks its own session
			case "ada":
				return dashboard.User{Name: user, Access: dashboard.AccessViewPayloads | dashboard.AccessOperate}
			case "support":
				return dashboard.User{Name: user, Access: dashboard.AccessView}
			}
			return dashboard.User{}
		},
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", d)

	get := func(user, path string) {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("X-User", user)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(user, path, w.Code, strings.Contains(w.Body.String(), "Pause this type"))
	}
	get("ada", "/outbox/type?name=SEND_WELCOME")
	get("support", "/outbox/type?name=SEND_WELCOME")
	get("eve", "/outbox/type?name=SEND_WELCOME")
	// Output:
	// ada /outbox/type?name=SEND_WELCOME 200 true
	// support /outbox/type?name=SEND_WELCOME 200 false
	// eve /outbox/type?name=SEND_WELCOME 403 false
}

// An app whose own protection against CSRF is around the dashboard, and a proxy that rewrites Host.
func ExampleConfig() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()

	d, err := dashboard.New(db, dashboard.Config{
		BasePath: "/outbox",
		Authorize: func(*http.Request) dashboard.User {
			return dashboard.User{Name: "ada", Access: dashboard.AccessOperate}
		},
		TrustedOrigins: []string{"http://admin.example.com"},
		CSRFField: func(r *http.Request) (name, value string) {
			return "gorilla.csrf.Token", "a token" // csrf.Token(r)
		},
	})
	if err != nil {
		panic(err)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest("GET", "/outbox/type?name=SEND_WELCOME", nil))
	fmt.Println(strings.Contains(w.Body.String(), `<input type="hidden" name="gorilla.csrf.Token" value="a token">`))

	r := httptest.NewRequest("POST", "/outbox/pause", strings.NewReader("name=SEND_WELCOME"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", "http://admin.example.com") // the proxy has made the Host another one
	w = httptest.NewRecorder()
	d.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Location"))
	// Output:
	// true
	// 303 ./type?n=1&name=SEND_WELCOME&ok=paused
}
