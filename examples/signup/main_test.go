package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/examples/internal/webtest"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) {
	child.Run(runChild)
	os.Exit(pgtest.Main(m))
}

// start starts the app as main does, without its pauses, and returns the URL of its page.
func start(t *testing.T) (url string, p *webtest.Program) {
	t.Helper()
	t.Setenv(devdb.Variable, "") // for the third line
	addr := webtest.Address(t)
	p = webtest.Start(t, func(ctx context.Context, url string, out io.Writer) error {
		return supervise(ctx, url, addr, 0, out)
	})
	url = strings.TrimPrefix(p.Line(), "open ")
	for range 2 {
		p.Line()
	}
	t.Cleanup(func() { p.Stop() })
	return url, p
}

func openDatabase(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := devdb.Open(t.Context(), dsn, tables)
	relaytest.Must(err)
	t.Cleanup(func() { db.Close() })
	return db
}

// send sends a form if there is one, follows redirects, and returns the status and the body.
func send(t *testing.T, url, form string, header ...string) (status int, body string) {
	t.Helper()
	method := http.MethodGet
	if form != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(form))
	relaytest.Must(err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	relaytest.Must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	relaytest.Must(err)
	return res.StatusCode, string(text)
}

// awaitText polls until the page at url has the text.
func awaitText(t *testing.T, url, want string) {
	t.Helper()
	body := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s has no %q:\n%s", url, want, body)
		}
	}()
	relaytest.Eventually(t, time.Minute, want, func() bool {
		_, body = send(t, url, "")
		return strings.Contains(body, want)
	})
}

func TestASignUpGrantsACreditAndSendsAMail(t *testing.T) {
	url, p := start(t)
	db := p.DB
	if status, page := send(t, url+"/signup", "email=a@example.com"); status != 200 ||
		!strings.Contains(page, "<li>a@example.com") {
		t.Errorf("the sign-up: %d\n%s", status, page)
	}
	awaitText(t, url, "<strong>Welcome!</strong> to a@example.com <small>A credit of 5.00 is yours.")
	awaitText(t, url, "<li>a@example.com <small>credit 5.00</small>")
	awaitText(t, url, "<span class=\"finished\">finished</span><a href=\"/outbox/task?id=2\">SEND_EMAIL_WELCOME</a>")

	for _, tt := range []struct {
		form, site string
		status     int
		shows      string
	}{
		{"email=a@example.com", "same-origin", 409, `role="alert">this e-mail address is signed up already`},
		{"email=nobody", "same-origin", 422, `role="alert">this is not an e-mail address`},
		{"other=field", "same-origin", 422, "not an e-mail address"},
		{"email=A <a@example.com>", "same-origin", 422, "not an e-mail address"},
		{"email=b@example.com%0d%0aBcc: c@example.com", "same-origin", 422, "not an e-mail address"},
		{"email=b%00@example.com", "same-origin", 422, "not an e-mail address"},
		{"email=b@example.com", "cross-site", 403, ""},
	} {
		status, body := send(t, url+"/signup", tt.form, "Sec-Fetch-Site", tt.site)
		if status != tt.status || !strings.Contains(body, tt.shows) {
			t.Errorf("%s from %s: %d, want %d and %q\n%s", tt.form, tt.site, status, tt.status, tt.shows, body)
		}
	}
	db.Emptied(t, time.Minute)
	db.Want(t, "1 1", `SELECT concat((SELECT count(*) FROM usr), ' ', (SELECT count(*) FROM ledger))`)
	// the dashboard shows that it worked
	for _, taskType := range []string{grantWelcomeCredit.Name(), sendEmailWelcome.Name()} {
		_, page := send(t, url+"/outbox/type?name="+taskType, "")
		m := regexp.MustCompile(`href="\./(task\?id=\d+)"`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("the page of %s shows no finished task:\n%s", taskType, page)
		}
		awaitText(t, url+"/outbox/"+m[1], "attempt 1 finished")
	}
}

// The page shows the program's own lines, from the transaction's begin to its commit.
func TestThePageShowsTheLinesThatEnqueue(t *testing.T) {
	lines := shownLines()
	if len(lines) < 12 || len(lines) > 16 || !strings.HasPrefix(lines[0], "return outbox.InTx(") ||
		lines[len(lines)-1] != "})\n" {
		t.Errorf("it shows %d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
	var shown bytes.Buffer
	relaytest.Must(page.Execute(&shown, map[string]any{"Lines": lines}))
	for _, want := range []string{"grantWelcomeCredit", "sendEmailWelcome"} {
		if !regexp.MustCompile(`<mark>.*` + want + `\.Enqueue\(ctx, tx, w\).*\n</mark>`).Match(shown.Bytes()) {
			t.Errorf("the page does not mark the line of %s:\n%s", want, &shown)
		}
	}
}

// The failure comes at the commit, when all is inserted.
func TestASignUpThatFailsLeavesNothing(t *testing.T) {
	db := openDatabase(t, pgtest.Database(t))
	if _, err := db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON usr INITIALLY DEFERRED FOR EACH ROW
		EXECUTE FUNCTION refuse()`); err != nil {
		t.Fatal(err)
	}
	if err := signUp(t.Context(), db, "a@example.com"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("signUp: %v", err)
	}
	var n int
	relaytest.Must(db.QueryRow(`SELECT (SELECT count(*) FROM usr) + (SELECT count(*) FROM outbox.task)`).Scan(&n))
	if n != 0 {
		t.Errorf("it left %d rows", n)
	}
}

// The process of the app dies between the commit of a sign-up and its answer. The next process runs
// the tasks.
func TestAKillAfterTheCommitLosesNoTask(t *testing.T) {
	url, p := start(t)
	_, page := send(t, url, "")
	first := regexp.MustCompile(`with its relay, is process (\d+)`).FindStringSubmatch(page)
	if first == nil {
		t.Fatalf("the page does not name its process:\n%s", page)
	}
	res, err := http.PostForm(url+"/signup", neturl.Values{"email": {"a@example.com"}, "kill": {"yes"}})
	if err == nil {
		res.Body.Close()
		t.Fatalf("a process that was killed answered %s", res.Status)
	}
	line := p.Line()
	for !strings.HasPrefix(line, "process ") { // records of the log come before
		line = p.Line()
	}
	second := regexp.MustCompile(`^process ` + first[1] + ` was killed; process (\d+) serves `).FindStringSubmatch(line)
	if second == nil || second[1] == first[1] {
		t.Fatalf("it printed %q after process %s was killed", line, first[1])
	}
	awaitText(t, url, "to a@example.com <small>A credit of 5.00 is yours.</small> <small>sent by process "+second[1])
	awaitText(t, url, "Process "+first[1]+" was killed. Process "+second[1]+" has started in its place")
	p.DB.Emptied(t, time.Minute)
	p.DB.Want(t, "1 1", `SELECT concat((SELECT count(*) FROM usr), ' ', (SELECT count(*) FROM ledger))`)
}

// An app that ends by itself is not started again.
func TestAnAppThatCannotStartEndsTheProgram(t *testing.T) {
	if err := supervise(t.Context(), pgtest.Database(t), "127.0.0.1:-1", 0, t.Output()); err == nil {
		t.Error("it served at no address")
	}
}

// A mail that is refused is found in the dashboard, with the cause, mended, redriven, and gone.
func TestARefusedMailIsSeenRedrivenAndGone(t *testing.T) {
	url, p := start(t)
	db := p.DB
	send(t, url+"/signup", "email=broken@full.example")
	send(t, url+"/signup", "email=good@example.com")
	awaitText(t, url, "to good@example.com")
	awaitText(t, url+"/outbox/dead", "the mail service refuses the recipient: 422")
	send(t, url+"/mailboxes", "full=false")
	awaitText(t, url, "The mailboxes at full.example are empty")
	id := db.Int(t, `SELECT task_id FROM outbox.dead_task`)
	send(t, url+"/outbox/redrive", fmt.Sprintf("one=%d", id))
	awaitText(t, url, "to broken@full.example")
	awaitText(t, url+"/outbox/dead", "There are no dead letters.")
}

// The demo, shortened; CI runs all of it on each push. Relays die by SIGKILL while they run tasks;
// no task is lost, no credit is granted twice.
func TestDemoKilledRelaysLoseNothing(t *testing.T) {
	needs.Long(t)
	d := demo{signUps: 100, kills: 3, relays: 2, lasting: 4 * time.Second}
	var out bytes.Buffer
	if err := d.run(t.Context(), pgtest.Database(t), &out); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, want := range []string{`kill 3 of 3: relay process \d+, which ran [1-9]`,
		`credits +100  for 100 users: exactly once`,
		`mails +1\d\d  for 100 users: at least once. \d+ came again`, `kept 100\.`, `tasks killed +[1-9]`} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("it does not say %s:\n%s", want, &out)
		}
	}
}

func TestTheDashboardIsForThisMachineOnly(t *testing.T) {
	dashboard, err := newDashboard(openDatabase(t, pgtest.Database(t)))
	relaytest.Must(err)
	app := (&site{}).routes(dashboard)
	for _, tt := range []struct {
		client, host string
		status       int
	}{
		{"127.0.0.1:50000", "localhost:8080", http.StatusOK},
		{"[::1]:50000", "[::1]:8080", http.StatusOK},
		{"[::ffff:127.0.0.1]:50000", "localhost", http.StatusOK},
		{"192.0.2.1:50000", "localhost:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "elsewhere.example", http.StatusForbidden}, // a name that its owner has lead to 127.0.0.1
		{"127.0.0.1:50000", "localhost.elsewhere.example:8080", http.StatusForbidden},
		{"127.0.0.1:50000", "", http.StatusForbidden},
		{"@", "localhost:8080", http.StatusForbidden}, // a Unix socket, as proxies use
	} {
		req := httptest.NewRequest(http.MethodGet, "/outbox/", nil)
		req.RemoteAddr, req.Host = tt.client, tt.host
		w := httptest.NewRecorder()
		app.ServeHTTP(w, req)
		if w.Code != tt.status {
			t.Errorf("from %s to %q: %d, want %d", tt.client, tt.host, w.Code, tt.status)
		}
	}
}

func TestTheWelcomeMailIsRetriedUnlessItCanNeverArrive(t *testing.T) {
	db := openDatabase(t, pgtest.Database(t))
	relaytest.Must(signUp(t.Context(), db, "a@example.com"))
	welcomeBy := func(service string, usrID int64) error {
		return sendWelcome(t.Context(), db, service, &outbox.Task[welcome]{ID: 7, Payload: welcome{usrID}})
	}
	for status, action := range map[int]handlers.Action{422: handlers.ActionDead, 503: handlers.ActionRetry} {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no thanks, "+r.PostFormValue("to"), status)
		}))
		err := welcomeBy(service.URL, 1)
		if handlers.ActionOf(err) != action || !strings.Contains(err.Error(), fmt.Sprint(status)) ||
			strings.Contains(err.Error(), "@") {
			t.Errorf("answer %d: %v, want %s and no address", status, err, action)
		}
		service.Close()
		if err := welcomeBy(service.URL, 1); handlers.ActionOf(err) != handlers.ActionRetry {
			t.Errorf("no service: %v, want a retry", err)
		}
	}
	inbox, err := startSink(0)
	relaytest.Must(err)
	defer inbox.close()
	if err := welcomeBy(inbox.url, 12345); handlers.ActionOf(err) != handlers.ActionDiscard {
		t.Errorf("a user who is gone: %v, want Discard", err)
	}
	for range 2 { // as after the death of a relay
		relaytest.Must(welcomeBy(inbox.url, 1))
	}
	mails := inbox.inbox().Mails
	if len(mails) != 1 || mails[0].Copies != 2 || !strings.HasSuffix(mails[0].Key, "-000000000007") {
		t.Errorf("the inbox has %+v, want a mail that came twice", mails)
	}
}

// The database that the environment names may be in use by the example itself: its relay would take
// tasks of the demo, which counts them.
func TestTheDemoHasADatabaseOfItsOwn(t *testing.T) {
	given := pgtest.Database(t)
	t.Setenv(devdb.Variable, given)
	t.Setenv("OUTBOX_TEST_DATABASE_URL", pgtest.Server(t).URL()) // for devdb to find
	t.Setenv("OUTBOX_TEST_POSTGRES", "url")
	relaytest.Must(devdb.WithOwn(t.Context(), func(url string) error {
		if url == given {
			t.Error("the demo works in the database that the environment names")
		}
		return nil
	}))
}
