package browsertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// serve starts a server of the test's own with a dashboard inside the app's middleware, in which the
// actor may do everything. The URL is that of its overview.
func serve(t testing.TB, db *relaytest.Database, actor string, around func(http.Handler) http.Handler,
	field func(*http.Request) (name, value string)) (url string) {
	t.Helper()
	d, err := dashboard.New(db.DB, dashboard.Config{BasePath: "/outbox", CSRFField: field,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Authorize: func(*http.Request) dashboard.User {
			return dashboard.User{Name: actor, Access: dashboard.AccessViewPayloads | dashboard.AccessOperate}
		}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", d)
	s := httptest.NewServer(around(mux))
	t.Cleanup(s.Close)
	return s.URL + "/outbox/"
}

// browser is a headless chromium with one tab, in which every line of the console fails the test.
type browser struct {
	ctx context.Context
	t   testing.TB
	url string // of the overview
}

// openDashboard starts a browser, and a dashboard in which the actor may do everything, of an
// outbox that is filled. Where no browser is installed the test is skipped.
func openDashboard(t testing.TB, actor string, fill func(testing.TB, *sql.DB)) (browser, *relaytest.Database) {
	t.Helper()
	path := needs.Program(t, "chromium", needs.Browsers...)
	db := relaytest.Open(t, relaytest.Migrated(t))
	fill(t, db.DB)
	b := openBrowser(t, path)
	b.url = serve(t, db, actor, func(h http.Handler) http.Handler { return h }, nil)
	return b, db
}

// plainHost is this machine by a name that browsers do not trust over plain http, unlike localhost.
const plainHost = "admin.shop.test"

// openBrowser starts a browser that ends with the test. Lines of the console with an expected text do
// not fail the test.
func openBrowser(t testing.TB, path string, expected ...string) (b browser) {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // root and containers have none; the pages are our own
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-crash-reporter", true),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("host-resolver-rules", "MAP "+plainHost+" 127.0.0.1"),
	)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf))
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900)); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	var listener sync.WaitGroup
	messages := chromedp.Console(ctx)
	listener.Go(func() {
		for message, err := range messages {
			if err != nil {
				return // the browser is closed
			}
			line := fmt.Sprintf("%s %s", message, message.URL)
			if !slices.ContainsFunc(expected, func(text string) bool { return strings.Contains(line, text) }) {
				t.Errorf("the browser's console: %s", line)
			}
		}
	})
	t.Cleanup(func() {
		closing, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := chromedp.Cancel(closing); err != nil { // returns when the browser has ended
			t.Errorf("close the browser: %v", err)
		}
		listener.Wait()
	})
	return browser{ctx, t, ""}
}

func (b browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// open loads a page of the dashboard.
func (b browser) open(path string) { b.t.Helper(); b.do(chromedp.Navigate(b.url + path)) }

// evaluate is the value of an expression on the page, as a string.
func (b browser) evaluate(expression string) string {
	b.t.Helper()
	s, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`String(`+expression+`)`))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return s
}

// click clicks an element as soon as it is there, and waits for a text.
func (b browser) click(selector, says string) {
	b.t.Helper()
	b.await(`document.querySelector(`+strconv.Quote(selector)+`) !== null`, selector)
	b.do(chromedp.Click(chromedp.CSS(selector)))
	b.awaitText(says)
}

// awaitText waits until the page's content has the text.
func (b browser) awaitText(want string) {
	b.t.Helper()
	b.await(`document.querySelector("main").innerText.includes(`+strconv.Quote(want)+`)`, want)
}

// await waits until an expression is true; while a page is being loaded it has no value.
func (b browser) await(expression, what string) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if s, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`String(`+expression+`)`)); err == nil &&
			s == "true" {
			return
		}
	}
	text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	b.t.Fatalf("waited for %s in vain; the page is\n%s", what, text)
}
