package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

const (
	brokenCause = "the mail server refuses the recipient: 552 5.2.2"
	welcomed    = "Welcome! to broken@full.example"
)

// A mail that is refused is found in the dashboard, with the cause, mended, redriven, and gone.
func TestARefusedMailIsSeenRedrivenAndGone(t *testing.T) {
	a := start(t)
	send(t, a.url+"/signup", "email=broken@full.example")
	send(t, a.url+"/signup", "email=good@example.com")
	awaitText(t, a.url, "to good@example.com")
	awaitText(t, a.url+"/outbox/dead", brokenCause)
	send(t, a.url+"/mailboxes", "full=false")
	awaitText(t, a.url, "The mailboxes at full.example are empty")
	id := number(t, a.db, `SELECT task_id FROM outbox.dead_task`)
	send(t, a.url+"/outbox/redrive", fmt.Sprintf("one=%d", id))
	awaitText(t, a.url, "to broken@full.example")
	awaitText(t, a.url+"/outbox/dead", "There are no dead letters.")
}

// The same by clicking, in a browser that starts at the app's page, which shows news by itself.
func TestARefusedMailIsRedrivenByClicking(t *testing.T) {
	path := needs.Program(t, "chromium", needs.Browsers...)
	a := start(t)
	ctx := startBrowser(t, path)
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
		relaytest.Eventually(t, time.Minute, want, func() bool {
			last = text(`document.querySelector("main").innerText`)
			return strings.Contains(last, want)
		})
	}
	click := func(selector, want string) {
		t.Helper()
		run(chromedp.Click(chromedp.CSS(selector)))
		shows(want)
	}
	run(chromedp.Navigate(a.url), chromedp.SendKeys(chromedp.CSS("input[name=email]"), "broken@full.example"))
	click("#signup button", "broken@full.example credit 5.00")
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`window.stays = true`)); err != nil {
		t.Fatal(err)
	}
	send(t, a.url+"/signup", "email=other@example.com") // somebody else
	shows("Welcome! to other@example.com")
	if text(`window.stays`) != "true" {
		t.Error("the page was loaded again")
	}

	click(`a[href="/outbox/"]`, "SEND_EMAIL_WELCOME")
	click(`a[href="./dead"]`, "1 dead letter")
	shows(brokenCause)
	click(`tbody th a`, "Last error")
	shows("1 of 20")
	letter := text(`location.href`)
	click(`#show-payload`, `"usr_id"`)
	run(chromedp.Navigate(a.url))
	click(`#mailboxes button`, "The mailboxes at full.example are empty")
	run(chromedp.Navigate(letter))
	click(`#redrive`, "The dead letter is a task again.")
	run(chromedp.Navigate(a.url))
	shows(welcomed)
	run(chromedp.Navigate(a.url + "/outbox/dead"))
	shows("There are no dead letters.")
}

// startBrowser starts a headless chromium that ends with the test.
func startBrowser(t *testing.T, path string) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // root and containers have none; the pages are our own
		chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-crash-reporter", true),
	)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(t.Logf))
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil { // returns when the browser has ended
			t.Errorf("close the browser: %v", err)
		}
	})
	return ctx
}
