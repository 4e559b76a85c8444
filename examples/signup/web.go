package main

import (
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
)

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"cents": func(n int) string { return fmt.Sprintf("%d.%02d", n/100, n%100) },
}).Parse(pageHTML))

// site is the app's pages.
type site struct {
	db    *sql.DB
	inbox *sink
}

func (s *site) routes(dashboard http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { s.show(w, r, http.StatusOK, "") })
	mux.HandleFunc("POST /signup", s.signUp)
	mux.HandleFunc("POST /mailboxes", func(w http.ResponseWriter, r *http.Request) {
		s.inbox.full.Store(r.PostFormValue("full") == "true")
		http.Redirect(w, r, "/", http.StatusSeeOther)
	})
	mux.Handle("/outbox/", dashboard)
	return http.NewCrossOriginProtection().Handler(mux) // another site's form must not sign its visitors up
}

func (s *site) signUp(w http.ResponseWriter, r *http.Request) {
	err := signUp(r.Context(), s.db, r.PostFormValue("email"))
	switch {
	case errors.Is(err, errEmail):
		s.show(w, r, http.StatusUnprocessableEntity, err.Error())
	case errors.Is(err, errEmailTaken):
		s.show(w, r, http.StatusConflict, err.Error())
	case err != nil:
		fail(w, r, err)
	default:
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

// show answers with the page, which has the problem of a sign-up that was refused.
func (s *site) show(w http.ResponseWriter, r *http.Request, status int, problem string) {
	const shown = 20
	users, err := newestUsers(r.Context(), s.db, shown)
	if err != nil {
		fail(w, r, err)
		return
	}
	mails := s.inbox.all()
	w.WriteHeader(status)
	_ = page.Execute(w, map[string]any{ // an error means that the browser went away
		"Problem": problem, "Users": users, "Mails": mails[:min(shown, len(mails))],
		"FullDomain": fullDomain, "Full": s.inbox.full.Load(),
	})
}

func fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil { // the browser is still there
		slog.Error("request", "error", err)
	}
	http.Error(w, "something went wrong", http.StatusInternalServerError)
}
