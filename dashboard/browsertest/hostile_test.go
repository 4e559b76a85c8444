package browsertest_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

// In a browser: nothing of it runs, is loaded, or leads away, also when pages keep themselves up to
// date.
func TestHostileTextsDoNothingInABrowser(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, `<script>window.pwned=1</script>`, dashboardtest.Haunt)
	b.do(chromedp.EmulateViewport(390, 844))
	for i, path := range dashboardtest.HauntedPages(t, db.DB) {
		if i > 40 && (strings.HasPrefix(path, "bulk") || strings.HasPrefix(path, "type?state") || strings.HasPrefix(path, "dead?")) {
			continue // they show nothing that others do not
		}
		b.open(path)
		// What a pointer or a key would set off is set off.
		got := b.evaluate(`(() => {
			for (const e of document.querySelectorAll("main *")) for (const what of ["mouseover", "focus", "load", "error", "toggle"]) e.dispatchEvent(new Event(what));
			const odd = [...document.querySelectorAll("script, img, iframe, style, link, base, object, meta[http-equiv]")].filter(e => !(e.getAttribute("src") || e.getAttribute("href") || "").startsWith("./static-"));
			const away = [...document.querySelectorAll("a[href], form")].filter(e => new URL(e.href || e.action).origin !== location.origin || (e.href || e.action).startsWith("javascript"));
			const wide = document.documentElement.scrollWidth > window.innerWidth;
			return JSON.stringify({pwned: window.pwned, odd: odd.map(e => e.outerHTML), away: away.map(e => e.outerHTML), wide: wide && document.documentElement.scrollWidth});
		})()`)
		if got != `{"odd":[],"away":[],"wide":false}` {
			t.Errorf("%s: %s", path, got)
		}
	}
	// A live page takes the texts in while it is open.
	b.open("audit")
	for _, h := range dashboardtest.Hostile {
		db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ($1, 'live', 'came later', $1)`, h)
	}
	b.awaitText("came later")
	if got := b.evaluate(`window.pwned`); got != "undefined" {
		t.Errorf("a script ran: %s", got)
	}
}
