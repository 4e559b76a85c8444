package main

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/txoutbox/outbox/internal/needs"
)

// In a real browser: sign up in the page, see the mail appear in the inbox, and what others do without a reload.
// TestPageWorksWithoutScript goes the same way by HTTP.
func TestBrowserSignsUpAndSeesTheMail(t *testing.T) {
	path := needs.Program(t, "chromium", needs.Browsers...)
	a := newTestApp(t)
	a.startRelay(t)
	ctx := startBrowser(t, path)
	signUp := func(email string) {
		t.Helper()
		err := chromedp.Do(ctx,
			chromedp.SendKeys(chromedp.CSS("input[name=email]"), email),
			chromedp.SendKeys(chromedp.CSS("input[name=password]"), "correct horse"),
			chromedp.Click(chromedp.CSS("button")))
		if err != nil {
			t.Fatal(err)
		}
	}
	// evaluate, as a page that is being loaded has no such element for a moment
	shows := func(selector, want string) {
		t.Helper()
		last := ""
		defer func() {
			if t.Failed() {
				t.Logf("%s shows %q, want %q", selector, last, want)
			}
		}()
		eventually(t, 20*time.Second, want, func() (ok bool) {
			last, _ = chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf(`(document.querySelector(%q) || {}).innerText || ""`, selector)))
			return strings.Contains(last, want)
		})
	}

	if err := chromedp.Do(ctx, chromedp.Navigate(a.URL)); err != nil {
		t.Fatal(err)
	}
	shows("#mails", "no mail yet")
	signUp("browser@example.com")
	shows("#signed-in", "signed in as browser@example.com")
	shows("#mails", "Welcome! to browser@example.com")
	shows("#mails", "A credit of 5.00 is yours.")
	shows("#users", "browser@example.com credit 5.00")

	// somebody else signs up, and the page shows it by itself
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`window.stays = true`)); err != nil {
		t.Fatal(err)
	}
	do(t, http.MethodPost, a.URL+"/signup", "email=other@example.com&password=correct horse", "Content-Type", formType)
	shows("#mails", "Welcome! to other@example.com")
	shows("#users", "other@example.com credit 5.00")
	if stays, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`window.stays === true`)); err != nil || !stays {
		t.Errorf("the page was loaded again: %v", err)
	}

	signUp("BROWSER@example.com")
	shows("#problem", "signed up already")
}

// startBrowser starts a headless chromium that ends with the test. What its console says fails the test.
func startBrowser(t *testing.T, path string) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // root and containers have none; the pages are our own
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
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
	var listener sync.WaitGroup
	console := chromedp.Console(ctx)
	listener.Go(func() {
		for message, err := range console {
			if err != nil {
				return // the browser is closed
			}
			if !strings.Contains(message.Text, "409") { // the sign-up that the test repeats
				t.Errorf("the browser's console: %s %s", message, message.URL)
			}
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
	return ctx
}

// What the browser does, by HTTP alone: the form of the page, the redirect, the inbox after a reload.
func TestPageWorksWithoutScript(t *testing.T) {
	a := newTestApp(t)
	a.startRelay(t)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	body := func(res *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", res.Request.URL, res.Status, err)
		}
		return html.UnescapeString(string(text))
	}
	page := body(client.Get(a.URL))
	form := regexp.MustCompile(`(?s)<form method="post" action="([^"]+)">(.*)</form>`).FindStringSubmatch(page)
	if form == nil {
		t.Fatalf("no form on the page:\n%s", page)
	}
	values := url.Values{}
	for _, input := range regexp.MustCompile(`<input name="(\w+)" type="(\w+)"`).FindAllStringSubmatch(form[2], -1) {
		values.Set(input[1], map[string]string{"email": "form+1@example.com", "password": "correct horse"}[input[2]])
	}
	page = body(client.PostForm(a.URL+form[1], values))
	if !strings.Contains(page, "signed in as form+1@example.com") {
		t.Errorf("after the sign-up the page shows\n%s", page)
	}
	inbox := regexp.MustCompile(`(?s)<ul id="mails".*?</ul>`)
	eventually(t, 10*time.Second, "the mail on the page", func() bool {
		return strings.Contains(inbox.FindString(body(client.Get(a.URL))), "to form+1@example.com")
	})
}
