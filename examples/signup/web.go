package main

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

//go:embed web
var webFiles embed.FS

var page = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"cents": func(n int) string { return fmt.Sprintf("%d.%02d", n/100, n%100) },
}).ParseFS(webFiles, "web/page.html"))

const (
	maxBody       = 16 << 10
	shownOnPage   = 20
	sessionCookie = "session"

	// The page loads nothing but its own two files, runs no inline script and cannot be framed.
	contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

// site is the app's web server.
type site struct {
	users      *users
	tasks      *tasks
	sink       *sink       // nil if mails go elsewhere,
	mailServer string      // and then it is where
	ops        *operations // nil if the relays are elsewhere
	traces     *traces
	log        *slog.Logger
}

func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { s.showPage(w, r, http.StatusOK, view{}) })
	mux.HandleFunc("POST /signup", s.signUp)
	if s.sink != nil {
		mux.HandleFunc("POST /mailboxes", s.mailboxes)
	}
	if s.ops != nil {
		s.ops.mount(mux)
	}
	mux.HandleFunc("GET /api/users", list(s, func(r *http.Request, limit int) (any, error) { return s.users.newest(r.Context(), limit) }))
	mux.HandleFunc("GET /api/tasks", list(s, func(r *http.Request, limit int) (any, error) { return s.tasks.oldest(r.Context(), limit) }))
	mux.HandleFunc("GET /api/mails", list(s, func(_ *http.Request, limit int) (any, error) { return s.mails(limit), nil }))
	for _, name := range []string{"app.js", "style.css"} {
		mux.HandleFunc("GET /static/"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, webFiles, "web/"+name)
		})
	}
	// A form on another site must not sign its visitors up here.
	return s.traces.requests(secureHeaders(http.NewCrossOriginProtection().Handler(mux)))
}

func secureHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", contentPolicy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// signUp takes a form or JSON. JSON is answered with 204, a form with a redirect to the page.
func (s *site) signUp(w http.ResponseWriter, r *http.Request) {
	email, password, err := credentials(w, r)
	if err != nil {
		s.refuse(w, r, email, err)
		return
	}
	token, err := s.users.signUp(r.Context(), email, password)
	if err != nil {
		s.refuse(w, r, email, err)
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: sessionCookie, Value: token, Path: "/", MaxAge: int(sessionLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil,
	})
	if isJSON(r) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// mailboxes makes those at full.example full or empty.
func (s *site) mailboxes(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	full, err := strconv.ParseBool(r.PostFormValue("full"))
	if err != nil {
		http.Error(w, "send a form with full=false or full=true", http.StatusBadRequest)
		return
	}
	s.sink.setFull(full)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// badRequest is what is wrong with a request that is no sign-up at all.
type badRequest struct {
	status int
	text   string
}

func (b badRequest) Error() string { return b.text }

func credentials(w http.ResponseWriter, r *http.Request) (email, password string, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if isJSON(r) {
		var in struct{ Email, Password string }
		err = json.NewDecoder(r.Body).Decode(&in)
		email, password = in.Email, in.Password
	} else if err = r.ParseForm(); err == nil {
		email, password = r.PostForm.Get("email"), r.PostForm.Get("password")
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return "", "", badRequest{http.StatusRequestEntityTooLarge, "this is too long"}
	case err != nil:
		return "", "", badRequest{http.StatusBadRequest, "this is neither a form nor JSON"}
	}
	return email, password, nil
}

// refuse answers a sign-up that failed: JSON with JSON, a browser with the page, others with a line of text.
func (s *site) refuse(w http.ResponseWriter, r *http.Request, email string, err error) {
	var bad badRequest
	status, text := http.StatusInternalServerError, "something went wrong, please try again"
	switch {
	case errors.Is(err, errEmailTaken):
		status, text = http.StatusConflict, errEmailTaken.Error()
	case errors.Is(err, errEmail), errors.Is(err, errPassword):
		status, text = http.StatusUnprocessableEntity, err.Error()
	case errors.As(err, &bad):
		status, text = bad.status, bad.text
	case r.Context().Err() == nil:
		s.log.Error("sign-up", "error", err)
	}
	switch {
	case isJSON(r):
		writeJSON(w, status, map[string]string{"error": text})
	case strings.Contains(r.Header.Get("Accept"), "text/html"):
		s.showPage(w, r, status, view{Email: email, Problem: text})
	default:
		http.Error(w, text, status)
	}
}

// view is what the page shows.
type view struct {
	Email, Problem string // of a sign-up that was refused
	SignedInAs     string
	Users          []user
	Mails          []received
	MailServer     string
	MailboxesFull  bool
	FullDomain     string
	Operations     bool // are at /outbox/ and so on
}

func (s *site) showPage(w http.ResponseWriter, r *http.Request, status int, v view) {
	v.Mails, v.MailServer, v.Operations = s.mails(shownOnPage), s.mailServer, s.ops != nil
	if s.sink != nil {
		v.FullDomain, v.MailboxesFull = fullDomain, s.sink.isFull()
	}
	var err error
	if cookie, missing := r.Cookie(sessionCookie); missing == nil {
		v.SignedInAs, err = s.users.bySession(r.Context(), cookie.Value)
	}
	if err == nil {
		v.Users, err = s.users.newest(r.Context(), shownOnPage)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := page.Execute(w, v); err != nil {
		s.log.Debug("page", "error", err) // the browser went away
	}
}

func (s *site) mails(limit int) []received {
	if s.sink == nil {
		return []received{}
	}
	return s.sink.newest(limit)
}

// list answers with what get returns for the request's limit, 1,000 by default.
func list(s *site, get func(r *http.Request, limit int) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		limit, err := strconv.Atoi(r.FormValue("limit"))
		if err != nil || limit < 1 || limit > 1000 {
			limit = 1000
		}
		rows, err := get(r, limit)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		writeJSON(w, http.StatusOK, rows)
	}
}

func (s *site) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.log.Error("request", "path", r.URL.Path, "error", err)
	}
	http.Error(w, "something went wrong", http.StatusInternalServerError)
}

func isJSON(r *http.Request) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return kind == "application/json"
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client went away
}
