package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// serving is outbox serve, until the test's end.
type serving struct {
	url, password string
	cmd           *exec.Cmd
	rest          *bufio.Reader // of stderr
}

func (db *testDB) serve(t *testing.T, env []string, args ...string) *serving {
	t.Helper()
	c := command(t, append(environment(db.URL), env...), append([]string{"serve", "-listen", "127.0.0.1:0"}, args...)...)
	tty, err := pty.Start(c) // a password is only made for a terminal
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	s := &serving{cmd: c, password: "from the environment", rest: bufio.NewReader(tty)}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	line := func(pattern string) string {
		text, err := s.rest.ReadString('\n')
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%q, %v, want %s", text, err, pattern)
		}
		return m[1]
	}
	s.url = line(`^outbox: (http://127\.0\.0\.1:\d+)\r?\n`)
	if len(env) == 0 {
		s.password = line(`^outbox: any name, password ([A-Z2-7]{26})\r?\n`)
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
	r.Header.Set("Sec-Fetch-Site", "same-origin")
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
	s := db.serve(t, nil)
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
	if code, body := s.ask(t, "GET", "/payload?id=1", "ada", s.password, nil); code != http.StatusForbidden || strings.Contains(body, "C4n4ry") {
		t.Errorf("a payload: %d %s", code, body)
	}
	if code, body := s.ask(t, "POST", "/pause", "ada", s.password, url.Values{"name": {"MAIL"}, "type": {"MAIL"}}); code != http.StatusSeeOther {
		t.Errorf("pause: %d %s", code, body)
	}
	if got := db.Text(t, `SELECT actor || ' ' || tool || ' ' || action FROM outbox.audit ORDER BY entry_id DESC LIMIT 1`); got != "ada dashboard pause" {
		t.Errorf("the audit has %s", got)
	}
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(s.rest)
	if err := s.cmd.Wait(); err != nil || strings.Contains(string(rest), "C4n4ry") || strings.Contains(string(rest), s.password) {
		t.Errorf("%v: %s", err, rest)
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
	if code, body := s.ask(t, "GET", "/payload?id=1", "ada", s.password, nil); code != http.StatusOK || !strings.Contains(body, "C4n4ry") {
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
}
