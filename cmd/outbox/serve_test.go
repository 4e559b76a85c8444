package main

import (
	"io"
	"net"
	"net/http"
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

const chosen = "from the environment"

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
	return s
}

// ask makes a request as ada, and fails unless the answer has the code, and the text if one is wanted.
func (s *serving) ask(t *testing.T, request, password string, code int, want string) (body string) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequest(method, s.url+path, strings.NewReader("name=MAIL"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", s.origin)
	r.SetBasicAuth("ada", password)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != code || !strings.Contains(string(text), want) {
		t.Errorf("%s from %s: %v, %d %s; want %d with %q", request, s.origin, err, response.StatusCode, text, code, want)
	}
	return string(text)
}

func TestServeShowsTheDashboardAndMetricsToThoseWhoHaveThePassword(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`)
	s := db.serve(t, nil, "-trusted-origin", "http://outbox.example.com", "-trusted-origin", "https://outbox.example.com")
	for _, path := range []string{"/", "/metrics", "/dashboard.css"} {
		for _, password := range []string{"", s.password + "x"} {
			if body := s.ask(t, "GET "+path, password, http.StatusUnauthorized, ""); strings.Contains(body, "MAIL") {
				t.Errorf("%s with %q: %s", path, password, body)
			}
		}
	}
	s.ask(t, "GET /", s.password, http.StatusOK, "MAIL")
	s.ask(t, "GET /metrics", s.password, http.StatusOK, `outbox_tasks{state="ready",type="MAIL"} 1`)
	if body := s.ask(t, "GET /task?id=1&payload=show", s.password, http.StatusOK, ""); strings.Contains(body, "C4n4ry") {
		t.Errorf("a payload: %s", body)
	}
	s.ask(t, "POST /pause", s.password, http.StatusSeeOther, "")
	s.origin = "https://outbox.example.com" // behind a proxy that rewrites Host
	s.ask(t, "POST /pause", s.password, http.StatusSeeOther, "")
	s.origin = "https://evil.example"
	s.ask(t, "POST /pause", s.password, http.StatusForbidden, "")
	db.is(t, `SELECT string_agg(DISTINCT concat_ws(' ', actor, tool, action), ', ')
		FROM outbox.audit WHERE action = 'pause'`, "ada dashboard pause")
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code, text := s.end(t), s.text(); code != exitOK || strings.Count(text, s.password) != 1 {
		t.Errorf("exit code %d: %s", code, text)
	}
}

func TestServeChangesNothingWhenItIsReadOnlyAndShowsPayloadsOnRequest(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`)
	s := db.serve(t, []string{"OUTBOX_SERVE_PASSWORD=" + chosen}, "-read-only", "-payload")
	s.ask(t, "POST /pause", chosen, http.StatusForbidden, "")
	s.ask(t, "GET /task?id=1&payload=show", chosen, http.StatusOK, "C4n4ry")
	db.is(t, `SELECT count(*) FROM outbox.task_type WHERE paused`, "0")
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
	const nowhere = "postgres://nobody@127.0.0.1:1/none?sslmode=disable"
	for _, c := range []step{
		{"-listen nope", exitUsage, "outbox: --listen"},
		{"-listen no-such-host.invalid:80", exitUsage, "outbox: --listen"},
		{"-listen " + l.Addr().String(), exitFailed, "outbox: --listen"},
		{"-trusted-origin outbox.example.com", exitUsage, "outbox: --trusted-origin: write the origin that browsers show"},
	} {
		url := db.URL
		if c.code == exitUsage {
			url = nowhere
		}
		env := environment(url, "OUTBOX_SERVE_PASSWORD="+chosen)
		r := finish(t, command(t, env, append([]string{"serve"}, strings.Fields(c.args)...)...))
		if r.code != c.code || !strings.HasPrefix(r.err, c.want) {
			t.Errorf("%q: got %+v, want exit code %d", c.args, r, c.code)
		}
	}
}
