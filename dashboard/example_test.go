package dashboard_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func ExampleNew() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()

	d, err := dashboard.New(db, dashboard.Config{
		BasePath: "/outbox",
		Authorize: func(r *http.Request) (dashboard.Access, string) {
			switch user := r.Header.Get("X-User"); user { // an app asks its own session
			case "ada":
				return dashboard.ViewPayloads | dashboard.Operate, user
			case "support":
				return dashboard.View, user
			}
			return 0, ""
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
