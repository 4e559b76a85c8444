package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

const (
	formType = "application/x-www-form-urlencoded"
	jsonType = "application/json"
)

func TestSignUpAnswersFormWithRedirectAndJSONWithNoContent(t *testing.T) {
	a := newTestApp(t)
	for _, tt := range []struct {
		name, contentType, body string
		status                  int
		location                string
	}{
		// the first as curl -d sends it, with a space that is not encoded
		{"form", formType, "email=a@example.com&password=correct horse", http.StatusSeeOther, "/"},
		{"JSON", jsonType, `{"email": "b@example.com", "password": "correct horse"}`, http.StatusNoContent, ""},
		{"JSON with charset", jsonType + "; charset=utf-8", `{"email": "c@example.com", "password": "correct horse"}`, http.StatusNoContent, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tasks := a.count(t, "outbox.task")
			res := do(t, http.MethodPost, a.URL+"/signup", tt.body, "Content-Type", tt.contentType)
			if res.StatusCode != tt.status || res.Header.Get("Location") != tt.location {
				t.Fatalf("status %d, Location %q, body %q; want %d, %q", res.StatusCode, res.Header.Get("Location"), res.body, tt.status, tt.location)
			}
			if got := a.count(t, "outbox.task") - tasks; got != 2 {
				t.Errorf("%d tasks were enqueued, want 2", got)
			}
			cookies := res.Cookies()
			if len(cookies) != 1 {
				t.Fatalf("cookies: %v, want one", cookies)
			}
			if c := cookies[0]; !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || len(c.Value) < 26 || c.Path != "/" {
				t.Errorf("cookie: %+v, want HttpOnly, SameSite=Lax, a random value", c)
			}
			email := tt.body[strings.Index(tt.body, "@")-1:][:len("a@example.com")]
			shown := do(t, http.MethodGet, a.URL+"/", "", "Cookie", cookies[0].String())
			if !strings.Contains(shown.body, "signed in as "+email) {
				t.Errorf("the page does not know whose session it is:\n%s", shown.body)
			}
		})
	}
}

func TestRefusedSignUpLeavesNothing(t *testing.T) {
	a := newTestApp(t)
	if res := do(t, http.MethodPost, a.URL+"/signup", "email=taken@example.com&password=correct horse", "Content-Type", formType); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("first sign-up: %s", res.Status)
	}
	long := strings.Repeat("x", 73)
	for _, tt := range []struct {
		name, contentType, body string
		status                  int
		message                 string
	}{
		{"taken", formType, "email=taken@example.com&password=correct horse", 409, "signed up already"},
		{"taken, in capitals", jsonType, `{"email": "TAKEN@Example.com", "password": "correct horse"}`, 409, "signed up already"},
		{"no fields", formType, "", 422, "not an e-mail address"},
		{"no at", formType, "email=nobody&password=correct horse", 422, "not an e-mail address"},
		{"display name", jsonType, `{"email": "A <a@example.com>", "password": "correct horse"}`, 422, "not an e-mail address"},
		{"header injection", jsonType, `{"email": "a@example.com\r\nBcc: b@example.com", "password": "correct horse"}`, 422, "not an e-mail address"},
		{"NUL", jsonType, `{"email": "a\u0000@example.com", "password": "correct horse"}`, 422, "not an e-mail address"},
		{"not UTF-8", formType, "email=a%ff@example.com&password=correct horse", 422, "not an e-mail address"},
		{"long address", formType, "email=" + strings.Repeat("x", 250) + "@example.com&password=correct horse", 422, "not an e-mail address"},
		{"short password", formType, "email=a@example.com&password=1234567", 422, "8 to 72"},
		{"long password", jsonType, `{"email": "a@example.com", "password": "` + long + `"}`, 422, "8 to 72"},
		{"broken JSON", jsonType, `{"email": `, 400, "neither a form nor JSON"},
		{"broken form", formType, "email=%zz", 400, "neither a form nor JSON"},
		{"large body", jsonType, `{"email": "` + strings.Repeat("x", maxBody), 413, "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := do(t, http.MethodPost, a.URL+"/signup", tt.body, "Content-Type", tt.contentType)
			if res.StatusCode != tt.status || !strings.Contains(res.body, tt.message) {
				t.Errorf("status %d, body %q; want %d, %q", res.StatusCode, res.body, tt.status, tt.message)
			}
			if len(res.Cookies()) > 0 {
				t.Error("a cookie was set")
			}
			if tt.contentType == jsonType {
				var problem struct{ Error string }
				if err := json.Unmarshal([]byte(res.body), &problem); err != nil || problem.Error == "" {
					t.Errorf("body %q, want JSON with an error", res.body)
				}
			}
			for table, want := range map[string]int{"usr": 1, "session": 1, "outbox.task": 2} {
				if got := a.count(t, table); got != want {
					t.Errorf("%s has %d rows, want %d", table, got, want)
				}
			}
		})
	}
}

func TestBrowserSeesProblemOnThePage(t *testing.T) {
	a := newTestApp(t)
	res := do(t, http.MethodPost, a.URL+"/signup", "email=<b>&password=correct horse", "Content-Type", formType, "Accept", "text/html")
	if res.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("status %d, want 422", res.StatusCode)
	}
	for _, want := range []string{`role="alert">this is not an e-mail address`, `value="&lt;b&gt;"`} {
		if !strings.Contains(res.body, want) {
			t.Errorf("the page lacks %s:\n%s", want, res.body)
		}
	}
}

// A task exists exactly when the transaction that enqueued it committed.
func TestFailedSignUpEnqueuesNothing(t *testing.T) {
	for _, table := range []string{"session", "outbox.task"} {
		t.Run(table, func(t *testing.T) {
			a := newTestApp(t)
			// deferred: the failure comes at the commit, after everything was inserted
			for _, statement := range []string{
				`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`,
				`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON ` + table + ` INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
			} {
				if _, err := a.db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			res := do(t, http.MethodPost, a.URL+"/signup", "email=a@example.com&password=correct horse", "Content-Type", formType)
			if res.StatusCode != http.StatusInternalServerError || strings.Contains(res.body, "refused") {
				t.Errorf("status %d, body %q; want 500 without details", res.StatusCode, res.body)
			}
			for _, table := range []string{"usr", "session", "outbox.task"} {
				if got := a.count(t, table); got != 0 {
					t.Errorf("%s has %d rows, want 0", table, got)
				}
			}
			if log := a.log.String(); !strings.Contains(log, "refused") || strings.Contains(log, "correct horse") {
				t.Errorf("log: %s, want the reason and no password", log)
			}
		})
	}
}

func TestFormOfAnotherSiteIsRefused(t *testing.T) {
	a := newTestApp(t)
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://elsewhere.example"}} {
		res := do(t, http.MethodPost, a.URL+"/signup", "email=a@example.com&password=correct horse", append(header, "Content-Type", formType)...)
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: status %d, want 403", header, res.StatusCode)
		}
	}
	if got := a.count(t, "usr"); got != 0 {
		t.Errorf("%d users, want 0", got)
	}
}

func TestAPIListsWithoutSecrets(t *testing.T) {
	a := newTestApp(t)
	for _, path := range []string{"/api/users", "/api/mails", "/api/tasks"} {
		if res := do(t, http.MethodGet, a.URL+path, ""); res.StatusCode != 200 || strings.TrimSpace(res.body) != "[]" {
			t.Errorf("%s of an empty app: %s %q, want []", path, res.Status, res.body)
		}
	}
	do(t, http.MethodPost, a.URL+"/signup", "email=a@example.com&password=correct horse", "Content-Type", formType)
	do(t, http.MethodPost, a.URL+"/signup", "email=b@example.com&password=correct horse", "Content-Type", formType)

	var listed []user
	res := do(t, http.MethodGet, a.URL+"/api/users?limit=1", "")
	if err := json.Unmarshal([]byte(res.body), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 1 || listed[0].Email != "b@example.com" || listed[0].CreatedAt.IsZero() {
		t.Errorf("users: %+v, want the newest", listed)
	}
	var pending []map[string]any
	res = do(t, http.MethodGet, a.URL+"/api/tasks", "")
	if err := json.Unmarshal([]byte(res.body), &pending); err != nil {
		t.Fatal(err)
	}
	if len(pending) != 4 || pending[0]["task_type"] != "GRANT_WELCOME_CREDIT" || pending[0]["state"] != "ready" {
		t.Errorf("tasks: %v, want four ready ones", pending)
	}
	if len(pending[0]) != 5 {
		t.Errorf("a task shows %v, want task_id, task_type, state, attempt and run_at only", pending[0])
	}
	for _, path := range []string{"/", "/api/users", "/api/mails", "/api/tasks"} {
		res := do(t, http.MethodGet, a.URL+path, "")
		for _, secret := range []string{"$2a$", "correct horse", "usr_id\\\":", "payload"} {
			if strings.Contains(res.body, secret) {
				t.Errorf("%s shows %q", path, secret)
			}
		}
	}
}

func TestPageAllowsNothingForeign(t *testing.T) {
	a := newTestApp(t)
	for _, path := range []string{"/", "/static/app.js", "/static/style.css"} {
		res := do(t, http.MethodGet, a.URL+path, "")
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Security-Policy") != contentPolicy || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %s, %v", path, res.Status, res.Header)
		}
		if strings.Contains(res.body, "//cdn") || strings.Contains(res.body, "https://") {
			t.Errorf("%s loads from elsewhere", path)
		}
	}
	if res := do(t, http.MethodGet, a.URL+"/static/page.html", ""); res.StatusCode != http.StatusNotFound {
		t.Errorf("the template is served: %s", res.Status)
	}
}

func TestMailboxesAreEmptiedAndFilledByAForm(t *testing.T) {
	a := newTestApp(t)
	for _, tt := range []struct {
		form, site string
		status     int
		shows      string
		full       bool
	}{
		{"", "same-origin", 400, "", true},
		{"full=perhaps", "same-origin", 400, "", true},
		{"full=false", "cross-site", 403, "", true},
		{"full=false", "same-origin", 303, "are empty", false},
		{"full=false", "same-origin", 303, "are empty", false},
		{"full=true", "same-origin", 303, "are full", true},
	} {
		res := do(t, http.MethodPost, a.URL+"/mailboxes", tt.form, "Content-Type", formType, "Sec-Fetch-Site", tt.site)
		if res.StatusCode != tt.status || a.inbox.isFull() != tt.full {
			t.Errorf("%q from %s: %s, full is %v; want %d, %v", tt.form, tt.site, res.Status, a.inbox.isFull(), tt.status, tt.full)
		}
		if page := do(t, http.MethodGet, a.URL, "").body; !strings.Contains(page, "The mailboxes at full.example "+tt.shows) {
			t.Errorf("%q: the page lacks %q:\n%s", tt.form, tt.shows, page)
		}
	}
}
