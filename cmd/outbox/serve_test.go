package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// serving is outbox serve, until the test's end.
type serving struct {
	*session
	url, password, origin string
}

var serves = regexp.MustCompile(`outbox: (http://127\.0\.0\.1:\d+)\r?\n(?:outbox: any name, password ([A-Z2-7]{26})\r?\n)?`)

func (db *testDB) serve(t *testing.T, env []string, args ...string) *serving {
	t.Helper()
	c := command(t, append(environment(db.URL), env...), append([]string{"serve", "-listen", "127.0.0.1:0"}, args...)...)
	s := &serving{session: onTerminal(t, c)} // a password is only made for a terminal
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	eventually(t, "its address is printed", func() bool {
		m := serves.FindStringSubmatch(s.text())
		if m != nil {
			s.url, s.password, s.origin = m[1], m[2], m[1]
		}
		return m != nil && (s.password != "" || len(env) > 0)
	})
	if len(env) > 0 {
		s.password = "from the environment"
	}
	return s
}

func (s *serving) ask(t *testing.T, method, path, name, password string, form url.Values) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", s.origin)
	if password != "" {
		r.SetBasicAuth(name, password)
	}
	response, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestServeShowsTheDashboardAndMetricsToThoseWhoHaveThePassword(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`)
	s := db.serve(t, nil, "-trusted-origin", "http://outbox.example.com", "-trusted-origin", "https://outbox.example.com")
	for _, path := range []string{"/", "/metrics", "/type?name=MAIL", "/dashboard.css"} {
		for _, password := range []string{"", "wrong", s.password + "x"} {
			if code, body := s.ask(t, "GET", path, "ada", password, nil); code != http.StatusUnauthorized || strings.Contains(body, "MAIL") {
				t.Errorf("%s with %q: %d %s", path, password, code, body)
			}
		}
	}
	if code, body := s.ask(t, "GET", "/", "ada", s.password, nil); code != http.StatusOK || !strings.Contains(body, "MAIL") {
		t.Errorf("the overview: %d %s", code, body)
	}
	if code, body := s.ask(t, "GET", "/metrics", "prometheus", s.password, nil); code != http.StatusOK || !strings.Contains(body, `outbox_tasks{state="ready",type="MAIL"} 1`) {
		t.Errorf("metrics: %d %s", code, body)
	}
	if code, body := s.ask(t, "GET", "/task?id=1&payload=show", "ada", s.password, nil); code != http.StatusOK || strings.Contains(body, "C4n4ry") {
		t.Errorf("a payload: %d %s", code, body)
	}
	if code, body := s.ask(t, "POST", "/pause", "ada", s.password, url.Values{"name": {"MAIL"}, "type": {"MAIL"}}); code != http.StatusSeeOther {
		t.Errorf("pause: %d %s", code, body)
	}
	for origin, want := range map[string]int{"https://outbox.example.com": http.StatusSeeOther, "https://evil.example": http.StatusForbidden} {
		s.origin = origin // behind a proxy that rewrites Host
		if code, body := s.ask(t, "POST", "/pause", "ada", s.password, url.Values{"name": {"MAIL"}}); code != want {
			t.Errorf("pause from %s: %d, want %d: %s", origin, code, want, body)
		}
	}
	if got := db.Text(t, `SELECT actor || ' ' || tool || ' ' || action FROM outbox.audit ORDER BY entry_id DESC LIMIT 1`); got != "ada dashboard pause" {
		t.Errorf("the audit has %s", got)
	}
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code, text := s.end(t), s.text(); code != exitOK || strings.Contains(text, "C4n4ry") || strings.Count(text, s.password) != 1 {
		t.Errorf("exit code %d: %s", code, text)
	}
}

func TestServeChangesNothingWhenItIsReadOnlyAndShowsPayloadsOnRequest(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`)
	s := db.serve(t, []string{"OUTBOX_SERVE_PASSWORD=from the environment"}, "-read-only", "-payload")
	if code, body := s.ask(t, "POST", "/pause", "ada", s.password, url.Values{"name": {"MAIL"}, "type": {"MAIL"}}); code != http.StatusForbidden {
		t.Errorf("pause: %d %s", code, body)
	}
	if code, body := s.ask(t, "GET", "/task?id=1&payload=show", "ada", s.password, nil); code != http.StatusOK || !strings.Contains(body, "C4n4ry") {
		t.Errorf("a payload: %d %s", code, body)
	}
	if got := db.Text(t, `SELECT count(*) FROM outbox.task_type WHERE paused`); got != "0" {
		t.Error("the type is paused")
	}
}

func TestServeRefusesWhatItCannotServe(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.steps(t, step{"serve -listen 127.0.0.1:0", exitUsage, "OUTBOX_SERVE_PASSWORD is not set, and there is no terminal"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, code := range map[string]int{
		"nope": exitUsage, "": exitUsage, "127.0.0.1:99999": exitUsage, "127.0.0.1:no-such-port": exitUsage, "::1:80": exitUsage,
		"no-such-host.invalid:80": exitUsage, l.Addr().String(): exitFailed,
	} {
		r := finish(t, command(t, environment(db.URL, "OUTBOX_SERVE_PASSWORD=from the environment"), "serve", "-listen", address))
		if r.code != code || !strings.HasPrefix(r.err, "outbox: --listen") {
			t.Errorf("%q: got %+v, want exit code %d", address, r, code)
		}
	}
	r := finish(t, command(t, environment(db.URL, "OUTBOX_SERVE_PASSWORD=from the environment"), "serve", "-trusted-origin", "outbox.example.com"))
	if r.code != exitUsage || !strings.Contains(r.err, "outbox: --trusted-origin: write the origin that browsers show: https (or http), the host") {
		t.Errorf("an origin without a scheme: got %+v", r)
	}
}
