package browsertest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// problems is an expression for the faults of a page: it is wider than its window, a control has no
// name, a row has not as many cells as headers, there is not one heading of the first level, or an id
// is there twice.
const problems = `(() => {
	const named = e => (e.getAttribute("aria-label") || e.textContent.trim() ||
		[...(e.labels || [])].map(l => l.textContent).join("")).trim() !== "";
	const bad = [...document.querySelectorAll("button, a, select, textarea, input:not([type=hidden])")].filter(e => !named(e));
	for (const tr of document.querySelectorAll("tbody tr"))
		if (tr.children.length !== tr.closest("table").querySelectorAll("thead th[scope=col]").length) bad.push(tr);
	if (document.querySelectorAll("h1").length !== 1 || !document.documentElement.lang) bad.push(document.body);
	const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
	const wide = document.documentElement.scrollWidth > window.innerWidth ? ["it is wider than its window"] : [];
	return wide.concat(bad.map(e => e.outerHTML.slice(0, 200)), ids.filter((id, i) => ids.indexOf(id) !== i)).join("; ");
})()`

// Each page fits a wide window and a narrow one in both themes. OUTBOX_SCREENSHOTS names a directory
// for pictures of the pages, like docs/screenshots.
func TestPagesFitTheirWindowInBothThemes(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, _ := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	for name, path := range map[string]string{"overview": "", "type": "type?name=SEND_WELCOME&state=scheduled",
		"type-paused": "type?name=SYNC_CRM", "task": "task?id=900001&payload=show", "task-live": "task?id=1",
		"cancel": "cancel?id=130", "dead-letters": "dead?type=SEND_WELCOME&error=user+unknown", "dead": "dead",
		"purge": "bulk?do=purge&type=SEND_WELCOME", "redrive": "bulk?do=redrive", "tasks": "tasks",
		"tasks-retrying": "tasks?type=SEND_WELCOME&state=retrying&error=421",
		"set-priority":   "bulk?do=set_priority", "schedules": "schedules",
		"relays": "relays", "audit": "audit"} {
		for _, theme := range []string{"light", "dark"} {
			b.setTheme(theme)
			b.open(path)
			b.await(`document.readyState === "complete"`, "the page")
			b.fits(name, theme)
		}
	}
}

// setTheme sets the system's colour scheme: light or dark.
func (b browser) setTheme(theme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// fits checks that the page has the theme, and fits a wide window and a narrow one.
func (b browser) fits(name, theme string) {
	b.t.Helper()
	dark := b.evaluate(`getComputedStyle(document.body).backgroundColor.match(/\d+/g)[0] < 70`)
	if (dark == "true") != (theme == "dark") {
		b.t.Errorf("the system is %s, the page %s is not", theme, name)
	}
	for window, size := range map[string][2]int64{"": {1280, 1000}, "phone-": {390, 844}} {
		b.do(chromedp.EmulateViewport(size[0], size[1]))
		if got := b.evaluate(problems); got != "" {
			b.t.Errorf("%s%s: %s", window, name, got)
		}
		if dir := os.Getenv("OUTBOX_SCREENSHOTS"); dir != "" {
			png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, window+name+"-"+theme+".png"), png, 0o644)
			}
			if err != nil {
				b.t.Fatal(err)
			}
		}
	}
}
