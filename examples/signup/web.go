package main

import (
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	neturl "net/url"
	"os"
	"strings"

	"github.com/txoutbox/outbox/admin"
)

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"cents":    func(n int) string { return fmt.Sprintf("%d.%02d", n/100, n%100) },
	"enqueues": func(line string) bool { return strings.Contains(line, ".Enqueue(") },
}).Parse(pageHTML))

// site is the app's pages.
type site struct {
	db    *sql.DB
	tasks *admin.Client
	app   childConfig
}

func newSite(db *sql.DB, app childConfig) (*site, error) {
	tasks, err := admin.New(db, admin.Config{})
	return &site{db, tasks, app}, err
}

func (s *site) routes(dashboard http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { s.show(w, r, http.StatusOK, "") })
	mux.HandleFunc("POST /signup", s.signUp)
	mux.HandleFunc("POST /mailboxes", s.setFull)
	mux.Handle("/outbox/", dashboard)
	return http.NewCrossOriginProtection().Handler(mux) // another site's form must not sign its visitors up
}

func (s *site) signUp(w http.ResponseWriter, r *http.Request) {
	err := signUp(r.Context(), s.db, r.PostFormValue("email"))
	if err == nil && r.PostFormValue("kill") != "" {
		err = die() // after the commit, before the answer
	}
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

// die sends SIGKILL to this process, or ends it likewise where there are no signals.
func die() error {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Kill(); err != nil {
		return err
	}
	select {}
}

func (s *site) setFull(w http.ResponseWriter, r *http.Request) {
	form := neturl.Values{"full": {r.PostFormValue("full")}}
	if _, err := post(r.Context(), s.app.Mails+"/mailboxes", form, ""); err != nil {
		fail(w, r, err)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// show answers with the page, which has the problem of a sign-up that was refused.
func (s *site) show(w http.ResponseWriter, r *http.Request, status int, problem string) {
	const shown = 8
	users, err := newestUsers(r.Context(), s.db, shown)
	if err != nil {
		fail(w, r, err)
		return
	}
	tasks, err := s.tasks.Tasks(r.Context(), admin.TaskQuery{Limit: shown})
	if err != nil {
		fail(w, r, err)
		return
	}
	in, err := mailsOf(r.Context(), s.app.Mails)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.WriteHeader(status)
	_ = page.Execute(w, map[string]any{ // an error means that the browser went away
		"Problem": problem, "Users": users, "Tasks": tasks.Tasks, "Mails": in.Mails[:min(shown, len(in.Mails))],
		"FullDomain": fullDomain, "Full": in.Full, "Lines": shownLines(), "Process": os.Getpid(), "Killed": s.app.Killed,
	})
}

func fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil { // the browser is still there
		slog.Error("request", "error", err)
	}
	http.Error(w, "something went wrong", http.StatusInternalServerError)
}
