package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestSignUpGrantsCreditAndSendsMailWithinASecond(t *testing.T) {
	a := newTestApp(t)
	a.startRelay(t)
	fastest := time.Hour // a busy machine may be slow now and then
	for _, email := range []string{"a@example.com", "ünï@example.com", "c@example.com"} {
		start := time.Now()
		res := do(t, http.MethodPost, a.URL+"/signup", "email="+email+"&password=correct horse", "Content-Type", formType)
		if res.StatusCode != http.StatusSeeOther {
			t.Fatalf("sign-up: %s %s", res.Status, res.body)
		}
		mail := awaitMail(t, a.URL, email, 10*time.Second)
		fastest = min(fastest, time.Since(start))
		if !regexp.MustCompile(`^outbox-task-\d+$`).MatchString(mail.IdempotencyKey) || mail.MessageID != "<"+mail.IdempotencyKey+"@signup.example>" || mail.Copies != 1 {
			t.Errorf("mail: %+v, want the task's id as its key", mail)
		}
	}
	if os.Getenv("OUTBOX_TEST_TIMING") != "" && fastest > time.Second {
		t.Errorf("each mail took %v or longer, want less than a second", fastest)
	}
	eventually(t, 10*time.Second, "no task is left", func() bool { return a.count(t, "outbox.task") == 0 })
	if got := a.count(t, "ledger"); got != 3 {
		t.Errorf("%d credits, want 3", got)
	}
	if log := a.log.String(); strings.Contains(log, "example.com") {
		t.Errorf("the log names an address:\n%s", log)
	}
}

func TestServeSendsThroughTheGivenMailServer(t *testing.T) {
	elsewhere := testSink(t)
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, config{addr: "127.0.0.1:0", databaseURL: pgtest.Database(t), smtp: elsewhere.address()}, slog.New(slog.DiscardHandler), write)
		write.Close()
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatalf("it said %q: %v, %v", line, err, <-done)
	}
	url := strings.TrimSpace(strings.TrimPrefix(line, "open "))

	res := do(t, http.MethodPost, url+"/signup", "email=a@example.com&password=correct horse", "Content-Type", formType)
	if res.StatusCode != http.StatusSeeOther {
		t.Fatalf("sign-up: %s %s", res.Status, res.body)
	}
	eventually(t, 10*time.Second, "the mail", func() bool { return len(elsewhere.newest(1)) == 1 })
	if res := do(t, http.MethodGet, url+"/api/mails", ""); strings.TrimSpace(res.body) != "[]" {
		t.Errorf("the app's own inbox: %s, want it empty", res.body)
	}
	if res := do(t, http.MethodGet, url+"/", ""); !strings.Contains(res.body, "Mails go to "+elsewhere.address()) {
		t.Errorf("the page does not say where mails go:\n%s", res.body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestServeFailsClearly(t *testing.T) {
	a := newTestApp(t)
	taken := strings.TrimPrefix(a.URL, "http://")
	for _, tt := range []struct {
		name string
		cfg  config
		want string
	}{
		{"address taken", config{addr: taken, databaseURL: a.db.url}, "address already in use"},
		{"no such database", config{addr: "127.0.0.1:0", databaseURL: strings.Replace(a.db.url, "/outbox_test_", "/absent_", 1)}, "absent_"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := serve(ctx, tt.cfg, slog.New(slog.DiscardHandler), io.Discard)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for args, want := range map[string]string{
		"-smtp nowhere":                 "-smtp: mail server",
		"-smtp host:0":                  "want HOST:PORT",
		"-smtp :25":                     "want HOST:PORT",
		"-demo -smtp localhost:25":      "takes no -smtp",
		"serve":                         `unexpected argument "serve"`,
		"-addr :1 -nonsense":            "not defined",
		"-seed five":                    "invalid value",
		"-addr :1 -smtp localhost:2525": "",
	} {
		var out safeBuffer
		_, err := parseFlags(strings.Fields(args), &out)
		if (err == nil) != (want == "") || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, printed %q; want %q", args, err, &out, want)
		}
	}
}

// awaitMail polls the API until the mail to email is there.
func awaitMail(t *testing.T, url, email string, within time.Duration) (mail received) {
	t.Helper()
	eventually(t, within, "the mail to "+email, func() bool {
		var mails []received
		if err := json.Unmarshal([]byte(do(t, http.MethodGet, url+"/api/mails", "").body), &mails); err != nil {
			t.Fatal(err)
		}
		for _, m := range mails {
			if m.To == email {
				mail = m
				return true
			}
		}
		return false
	})
	return mail
}
