package browsertest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

// Each page fits a wide window and a narrow one, and has enough contrast in both themes. The theme
// is the system's until the viewer chooses one. OUTBOX_SCREENSHOTS names a directory for pictures
// of the pages, like docs/screenshots.
func TestPagesFitTheirWindowInBothThemes(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, _ := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	dark := func() bool {
		return b.evaluate(`(() => { const c = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number); return c[0] + c[1] + c[2] < 200 })()`) == "true"
	}
	for name, path := range map[string]string{"overview": "", "type": "type?name=SEND_WELCOME&state=scheduled", "type-paused": "type?name=SYNC_CRM", "task": "task?id=900001&payload=show", "task-live": "task?id=1",
		"cancel": "cancel?id=130", "dead-letters": "dead?type=SEND_WELCOME&error=user+unknown", "dead": "dead", "purge": "bulk?do=purge&type=SEND_WELCOME", "redrive": "bulk?do=redrive", "schedules": "schedules",
		"relays": "relays", "audit": "audit", "problem": "none"} {
		b.console.expect(name == "problem") // a 404 is an error of the console
		for _, system := range []string{"light", "dark"} {
			b.media(system)
			b.open(path)
			b.await(`document.readyState === "complete"`, "the page")
			if dark() != (system == "dark") {
				t.Errorf("the system is %s, the page %s is not", system, name)
			}
			if got := b.evaluate(contrast); got != "" {
				t.Errorf("%s, %s: too little contrast: %s", name, system, got)
			}
			for window, size := range map[string][2]int64{"": {1280, 1000}, "phone-": {390, 844}} {
				b.do(chromedp.EmulateViewport(size[0], size[1]))
				if wide := b.evaluate(`document.documentElement.scrollWidth > window.innerWidth`); wide == "true" {
					t.Errorf("%s is wider than its window: %s of %d", name, b.evaluate(`document.documentElement.scrollWidth`), size[0])
				}
				if dir := os.Getenv("OUTBOX_SCREENSHOTS"); dir != "" {
					png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
					if err == nil {
						err = os.WriteFile(filepath.Join(dir, window+name+"-"+system+".png"), png, 0o644)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	b.console.expect(false)
	b.do(chromedp.EmulateViewport(1280, 900))
	b.open("dead?type=SEND_WELCOME")
	for _, theme := range []string{"light", "dark", "light"} {
		b.do(chromedp.Click(chromedp.CSS(`button[value="` + theme + `"]`)))
		b.await(`document.documentElement.dataset.theme === `+quote(theme), theme)
		if dark() != (theme == "dark") || b.evaluate(`location.search`) != "?type=SEND_WELCOME" {
			t.Errorf("the theme %s was chosen, the page is another", theme)
		}
	}
}

// contrast is an expression for the texts on the page whose contrast with what is behind them is
// below 4.5, or 3 where they are large.
const contrast = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgba = s => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = s; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const over = (a, b) => a.slice(0, 3).map((x, i) => x * a[3] / 255 + b[i] * (1 - a[3] / 255)).concat(255);
	const luminance = c => { const [r, g, b] = c.slice(0, 3).map(x => (x /= 255) <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
	const behind = e => { const c = e ? rgba(getComputedStyle(e).backgroundColor) : rgba("white"); return c[3] === 255 ? c : over(c, e ? behind(e.parentElement) : [255, 255, 255, 255]); };
	const bad = new Set();
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || e.matches(".hidden, .skip, option, thead *") && !e.offsetHeight) continue;
		const style = getComputedStyle(e);
		let opacity = 1;
		for (let p = e; p; p = p.parentElement) opacity *= getComputedStyle(p).opacity;
		const back = behind(e), c = rgba(style.color);
		c[3] *= opacity;
		const [a, b] = [luminance(over(c, back)), luminance(back)].sort((x, y) => y - x);
		const large = parseFloat(style.fontSize) >= 24 || parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700;
		if ((a + .05) / (b + .05) < (large ? 3 : 4.5)) bad.add(e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 30) + " " + ((a + .05) / (b + .05)).toFixed(2));
	}
	return [...bad].join("; ");
})()`
