package browsertest_test

import (
	"context"
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
}

// console counts what it says while that is expected.
type console struct {
	mu       sync.Mutex
	expected bool
	said     int
}

// quiet has the console say what it likes from now on, and loud not any more.
func (b browser) quiet() { b.console.mu.Lock(); b.console.expected = true; b.console.mu.Unlock() }
func (b browser) loud()  { b.console.mu.Lock(); b.console.expected = false; b.console.mu.Unlock() }

// heard is how many lines the console had while it was quiet.
func (b browser) heard() int { b.console.mu.Lock(); defer b.console.mu.Unlock(); return b.console.said }

// needsBrowser skips the test where no browser is installed. What the pages do without script is tested by HTTP.
func needsBrowser(t testing.TB) (path string) {
	t.Helper()
	return needs.Program(t, "chromium", needs.Browsers...)
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
	return browser{ctx, t, c}
}

func (b browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func (b browser) open(url string) { b.t.Helper(); b.do(chromedp.Navigate(url)) }

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

// The check of the console finds what the policy blocks: a script in the page's own text, were one there.
func TestTheBrowserBlocksInlineScriptAndSaysSo(t *testing.T) {
	t.Parallel()
	chromium := needsBrowser(t)
	url := serve(t, relaytest.Open(t, relaytest.Migrated(t)), "ada@example.com")
	b := openBrowser(t, chromium)
	b.open(url + "audit")
	// The listener says so to a test of its own.
	b.quiet()
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
