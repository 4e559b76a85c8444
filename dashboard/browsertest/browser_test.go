package browsertest_test

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// browser is a headless chromium with one tab, in which every line of the console fails the test.
type browser struct {
	ctx     context.Context
	t       testing.TB
	console *console
	url     string // of the overview
}

// console counts what it says while that is expected.
type console struct {
	mu       sync.Mutex
	expected bool
	said     int
}

// expect has the console say what it likes, or not any more.
func (c *console) expect(anything bool) { c.mu.Lock(); c.expected = anything; c.mu.Unlock() }

// heard is how many lines the console had while it was quiet.
func (b browser) heard() int { b.console.mu.Lock(); defer b.console.mu.Unlock(); return b.console.said }

// openDashboard starts a browser, and a dashboard in which the actor may do everything, of an
// outbox that is filled. Where no browser is installed the test is skipped: what the pages do
// without script is tested by HTTP.
func openDashboard(t testing.TB, actor string, fill func(testing.TB, *sql.DB)) (browser, *relaytest.Database) {
	t.Helper()
	path := needs.Program(t, "chromium", needs.Browsers...)
	db := relaytest.Open(t, relaytest.Migrated(t))
	fill(t, db.DB)
	b := openBrowser(t, path)
	b.url = serve(t, db, actor)
	return b, db
}

// openBrowser starts a browser that ends with the test.
func openBrowser(t testing.TB, path string) (b browser) {
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
	)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf))
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	var listener sync.WaitGroup
	c := &console{}
	messages := chromedp.Console(ctx)
	listener.Go(func() {
		for message, err := range messages {
			if err != nil {
				return // the browser is closed
			}
			c.mu.Lock()
			if c.said++; !c.expected {
				t.Errorf("the browser's console: %s %s", message, message.URL)
			}
			c.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		patience, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := chromedp.Cancel(patience); err != nil { // returns when the browser has ended
			t.Errorf("close the browser: %v", err)
		}
		listener.Wait()
	})
	return browser{ctx, t, c, ""}
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

// awaitText waits until the page's content has the text.
func (b browser) awaitText(want string) {
	b.t.Helper()
	b.await(`document.querySelector("main").innerText.includes(`+quote(want)+`)`, want)
}

// await waits until an expression is true; while a page is being loaded it has no value.
func (b browser) await(expression, what string) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if s, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`String(`+expression+`)`)); err == nil && s == "true" {
			return
		}
	}
	text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	b.t.Fatalf("waited for %s in vain; the page is\n%s", what, text)
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// media sets what the system prefers.
func (b browser) media(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// The check of the console finds what the policy blocks: a script in the page's own text, were one
// there.
func TestTheBrowserBlocksInlineScriptAndSaysSo(t *testing.T) {
	t.Parallel()
	b, _ := openDashboard(t, "ada@example.com", func(testing.TB, *sql.DB) {})
	b.open("audit")
	// The listener says so to a test of its own.
	b.console.expect(true)
	b.evaluate(`(() => {
		window.blocked = [];
		document.addEventListener("securitypolicyviolation", e => window.blocked.push(e.effectiveDirective));
		const script = document.createElement("script"); script.textContent = "window.pwned = 1"; document.body.append(script);
		const p = document.createElement("p"); p.innerHTML = "<img src=x onerror='window.pwned=1'><b style='color:red'>x</b>"; document.body.append(p);
		const frame = document.createElement("iframe"); frame.src = "https://example.com/"; document.body.append(frame);
	})()`)
	b.await(`["script-src-elem", "style-src-attr", "frame-src"].every(d => window.blocked.includes(d))`, "the violations")
	if got := b.evaluate(`window.pwned`); got != "undefined" {
		t.Errorf("a script ran: %s", got)
	}
	if b.heard() == 0 {
		t.Error("the console said nothing of what was blocked")
	}
}
