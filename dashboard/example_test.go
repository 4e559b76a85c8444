package dashboard_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// exampleDatabase is a migrated database with three tasks.
func exampleDatabase() (*sql.DB, func()) {
	url, drop := pgtest.ExampleDatabase()
	db, err := sql.Open("postgres", url)
	if err == nil {
		err = schema.Migrate(context.Background(), db)
	}
	if err == nil {
		err = outbox.InTx(context.Background(), db, func(tx *sql.Tx) error {
			for n := range 3 {
				if _, err := outbox.Enqueue(context.Background(), tx, "SEND_WELCOME", n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		panic(err)
	}
	return db, func() { db.Close(); drop() }
}

func ExampleNew() {
	db, drop := exampleDatabase()
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
