package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/pgdb"
	"golang.org/x/crypto/bcrypt"
)

const brokenAddress = "broken@full.example"

// Of 1,000 sign-ups one has a broken address: its mail is found in the dashboard, with the cause, mended, redriven, and gone. By clicking, in a
// browser that starts at the app's page; where there is none, by the same requests.
func TestOneBrokenAddressOfAThousandIsFoundSeenRedrivenAndGone(t *testing.T) {
	needs.Long(t)
	a := startServed(t)
	a.signUpWithABrokenOne(t)
	if path := needs.Optional(t, "chromium", needs.Browsers...); path != "" {
		redriveByClicking(t, startBrowser(t, path), a.url, brokenCause)
	} else {
		redriveByHTTP(t, a, brokenCause)
	}
	a.isMended(t)
}

// The same with the command line alone, but for the mailbox, which is the mail server's.
func TestOneBrokenAddressOfAThousandByTheCommandLineAlone(t *testing.T) {
	needs.Long(t)
	a := startServed(t)
	binary := filepath.Join(t.TempDir(), "outbox")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", binary, ".")
	build.Dir = "../../cmd/outbox"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	outbox := func(args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), binary, args...)
		c.Env = append(os.Environ(), "OUTBOX_DATABASE_URL="+a.db.url)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("outbox %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	says := func(want []string, args ...string) string {
		t.Helper()
		out := outbox(args...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Fatalf("outbox %s says, without %q,\n%s", strings.Join(args, " "), w, out)
			}
		}
		return out
	}
	a.signUpWithABrokenOne(t)

	list := says([]string{"SEND_EMAIL_WELCOME", "552 5.2.2 mailbox is full"}, "dead", "list")
	id := regexp.MustCompile(`(?m)^ *(\d+) +SEND_EMAIL_WELCOME`).FindStringSubmatch(list)
	if id == nil || strings.Count(list, "SEND_EMAIL_WELCOME") != 1 {
		t.Fatalf("the dead letters are\n%s", list)
	}
	if shown := says([]string{"SEND_EMAIL_WELCOME", brokenCause}, "dead", "show", id[1]); strings.Contains(shown, "usr_id") {
		t.Errorf("it shows the payload unasked:\n%s", shown)
	}
	says([]string{`"usr_id"`}, "dead", "show", id[1], "-payload")
	if res := do(t, http.MethodPost, a.url+"/mailboxes", "full=false", "Content-Type", formType); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("mend: %s", res.Status)
	}
	says([]string{"1 dead letter redriven"}, "dead", "redrive", id[1])
	eventually(t, 20*time.Second, "the mail is sent", func() bool { return a.mails(t)[brokenAddress] == 1 })
	if list := outbox("dead", "list"); strings.Contains(list, "SEND_EMAIL_WELCOME") {
		t.Errorf("there are dead letters:\n%s", list)
	}
	says([]string{"redrive"}, "audit")
	a.isMended(t)
}

const (
	manySignUps = 1000
	brokenCause = "the mail server refuses the recipient: 552 5.2.2 mailbox is full"
)

// signUpWithABrokenOne signs up 1,000 users, one of them with the broken address, and waits until all tasks have run.
func (a *served) signUpWithABrokenOne(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, "the relay is ready", func() bool { return do(t, http.MethodGet, a.url+"/healthz", "").StatusCode == http.StatusOK })
	a.signUp(t, manySignUps)
	eventually(t, 30*time.Second, "all tasks have run", func() bool {
		return strings.TrimSpace(do(t, http.MethodGet, a.url+"/api/tasks?limit=1", "").body) == "[]"
	})
	a.awaitMetrics(t,
		`outbox_tasks{state="dead",type="SEND_EMAIL_WELCOME"} 1`,
		`outbox_finished_total{type="SEND_EMAIL_WELCOME"} 999`,
		`outbox_finished_total{type="GRANT_WELCOME_CREDIT"} 1000`,
		`outbox_dead_letters_total{reason="handler",type="SEND_EMAIL_WELCOME"} 1`,
		`outbox_runs_total{outcome="dead",type="SEND_EMAIL_WELCOME"} 1`,
		`outbox_runs_total{outcome="done",type="SEND_EMAIL_WELCOME"} 999`,
		`outbox_relays_alive 1`,
		`outbox_scrape_success 1`)
	if mails := a.mails(t); len(mails) != manySignUps-1 || mails[brokenAddress] != 0 {
		t.Errorf("%d mails, %d to the broken address, before it is mended", len(mails), mails[brokenAddress])
	}
}

// isMended looks whether each user has one mail and one credit, and nothing is left.
func (a *served) isMended(t *testing.T) {
	t.Helper()
	a.awaitMetrics(t,
		`outbox_tasks{state="dead",type="SEND_EMAIL_WELCOME"} 0`,
		`outbox_finished_total{type="SEND_EMAIL_WELCOME"} 1000`,
		`outbox_runs_total{outcome="done",type="SEND_EMAIL_WELCOME"} 1000`)
	mails := a.mails(t)
	for address, copies := range mails {
		if copies != 1 {
			t.Errorf("%d mails to %s, want one", copies, address)
		}
	}
	if len(mails) != manySignUps || mails[brokenAddress] != 1 {
		t.Errorf("mails to %d addresses, %d to the broken one; want one to each of %d", len(mails), mails[brokenAddress], manySignUps)
	}
	for query, want := range map[string]int{
		`SELECT count(*) FROM usr`:                                        manySignUps,
		`SELECT count(*) FROM ledger`:                                     manySignUps,
		`SELECT count(DISTINCT usr_id) FROM ledger`:                       manySignUps,
		`SELECT count(*) FROM outbox.task`:                                0,
		`SELECT count(*) FROM outbox.dead_task`:                           0,
		`SELECT count(*) FROM outbox.audit WHERE action = 'redrive'`:      1,
		`SELECT count(DISTINCT target) FROM outbox.audit WHERE count = 1`: 1,
	} {
		if got := a.number(t, query); got != want {
			t.Errorf("%s is %d, want %d", query, got, want)
		}
	}
}

// redriveByClicking goes from the app's page to the dead letter, back to mend the mailbox, and to the dashboard again.
func redriveByClicking(t *testing.T, ctx context.Context, url, cause string) {
	t.Helper()
	run := func(steps ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, steps...); err != nil {
			t.Fatal(err)
		}
	}
	text := func(expression string) string {
		s, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`String(`+expression+`)`)) // a page that is being loaded has none
		return s
	}
	shows := func(want string) {
		t.Helper()
		last := ""
		defer func() {
			if t.Failed() {
				t.Logf("want %q on the page\n%s", want, last)
			}
		}()
		eventually(t, 20*time.Second, want, func() bool {
			last = text(`document.querySelector("main").innerText`)
			return strings.Contains(last, want)
		})
	}
	click := func(selector, want string) {
		t.Helper()
		run(chromedp.Click(chromedp.CSS(selector)))
		shows(want)
	}
	run(chromedp.Navigate(url))
	click(`a[href="/outbox/"]`, "SEND_EMAIL_WELCOME")
	click(`a[href="./dead"]`, "1 dead letter")
	if got := text(`document.querySelectorAll("tbody tr").length`); got != "1" {
		t.Errorf("the page of dead letters has %s rows, want 1", got)
	}
	shows(cause)
	click(`tbody th a`, "Last error")
	shows(cause)
	shows("1 of 10")
	letter := text(`location.href`)
	click(`#show-payload`, `"usr_id"`)

	run(chromedp.Navigate(url))
	shows("The mailboxes at full.example are full")
	click(`#mailboxes button`, "The mailboxes at full.example are empty")

	run(chromedp.Navigate(letter))
	click(`#redrive`, "The dead letter is a task again.")
	eventually(t, 20*time.Second, "the dead letter is gone", func() bool {
		run(chromedp.Navigate(url + "/outbox/dead"))
		return strings.Contains(text(`document.querySelector("main").innerText`), "There are no dead letters.")
	})
	run(chromedp.Navigate(url))
	shows("Welcome! to " + brokenAddress)
}

// redriveByHTTP does what a browser does with the forms.
func redriveByHTTP(t *testing.T, a *served, cause string) {
	t.Helper()
	if page := do(t, http.MethodGet, a.url+"/outbox/dead", "").body; !strings.Contains(page, cause) || strings.Count(page, `id="redrive-`) != 1 {
		t.Fatalf("the page of dead letters is\n%s", page)
	}
	if res := do(t, http.MethodPost, a.url+"/mailboxes", "full=false", "Content-Type", formType); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("mend: %s", res.Status)
	}
	id := a.number(t, `SELECT task_id FROM outbox.dead_task`)
	if res := do(t, http.MethodPost, a.url+"/outbox/redrive", fmt.Sprintf("one=%d", id), "Content-Type", formType); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("redrive: %s", res.Status)
	}
}

// served is the whole app, as main starts it, but for cheap hashes of passwords.
type served struct {
	url string
	db  *database
}

func startServed(t *testing.T) *served {
	t.Helper()
	dsn := pgtest.Database(t)
	ctx, cancel := context.WithCancel(context.Background())
	var log safeBuffer
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		cfg := config{addr: "127.0.0.1:0", databaseURL: dsn, hashCost: bcrypt.MinCost}
		err := serve(ctx, cfg, slog.New(slog.NewTextHandler(&log, nil)), write)
		write.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", &log)
		}
	})
	lines := bufio.NewScanner(read)
	var said []string
	for len(said) < 3 && lines.Scan() {
		said = append(said, lines.Text())
	}
	if len(said) < 3 {
		t.Fatalf("it said %q: %v", said, lines.Err())
	}
	url := strings.TrimPrefix(said[0], "open ")
	if !strings.Contains(said[1], url+"/outbox/") || !strings.Contains(said[2], url+"/metrics") || !strings.Contains(said[2], url+"/healthz") {
		t.Errorf("it does not say where things are: %q", said)
	}
	db := &database{url: dsn}
	var err error
	if db.DB, err = pgdb.Open(dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &served{url: url, db: db}
}

// signUp signs up n users, a few at a time, one of them with the broken address.
func (a *served) signUp(t *testing.T, n int) {
	t.Helper()
	numbers := make(chan int)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range numbers {
				email := fmt.Sprintf("user-%d@example.com", i)
				if i == n/2 {
					email = brokenAddress
				}
				if err := postSignUp(t.Context(), a.url, email); err != nil {
					t.Errorf("%s: %v", email, err)
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	clients.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// mails are how many copies came to each address.
func (a *served) mails(t *testing.T) map[string]int {
	t.Helper()
	var list []received
	if err := json.Unmarshal([]byte(do(t, http.MethodGet, a.url+"/api/mails", "").body), &list); err != nil {
		t.Fatal(err)
	}
	copies := map[string]int{}
	for _, m := range list {
		copies[m.To] += m.Copies
	}
	return copies
}

func (a *served) awaitMetrics(t *testing.T, want ...string) {
	t.Helper()
	var missing []string
	defer func() {
		if t.Failed() && len(missing) > 0 {
			t.Logf("/metrics lacks %q:\n%s", missing, do(t, http.MethodGet, a.url+"/metrics", "").body)
		}
	}()
	eventually(t, 20*time.Second, "the metrics", func() bool {
		body := "\n" + do(t, http.MethodGet, a.url+"/metrics", "").body
		missing = missing[:0]
		for _, line := range want {
			if !strings.Contains(body, "\n"+line+"\n") {
				missing = append(missing, line)
			}
		}
		return len(missing) == 0
	})
}

func (a *served) number(t *testing.T, query string) (n int) {
	t.Helper()
	if err := a.db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
