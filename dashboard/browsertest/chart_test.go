package browsertest_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/txoutbox/outbox/internal/dashboardtest"
)

// A chart shows the value under the pointer, and with the focus the one that the arrow keys go to,
// also after the page has got new values.
func TestAChartShowsItsValues(t *testing.T) {
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	b.do(chromedp.EmulateViewport(1280, 900))
	b.open("")
	const svg = `document.querySelectorAll(".chart svg")[2]` // tasks that are ready
	value := func() string { return b.evaluate(svg + `.parentElement.querySelector("output").textContent`) }
	b.evaluate(`(s => { const r = s.getBoundingClientRect();
		s.dispatchEvent(new PointerEvent("pointermove", {clientX: r.left, clientY: r.top + 5, bubbles: true})) })(` + svg + `)`)
	first := b.evaluate(svg + `.dataset.values.split(" ")[0]`)
	if got := value(); !strings.HasSuffix(got, " UTC: "+first) {
		t.Errorf("under the pointer at its left end it shows %q, want %s", got, first)
	}
	b.evaluate(`document.querySelector("h1").dispatchEvent(new PointerEvent("pointermove", {bubbles: true}))`)
	if got := value(); got != "" {
		t.Errorf("the pointer has left it, and it shows %q", got)
	}
	b.do(chromedp.KeyEvent("\t")) // the window has the focus
	b.evaluate(svg + `.focus()`)
	if got := value(); !strings.HasSuffix(got, ": 1,975") {
		t.Errorf("with the focus it shows %q, want the last value, 1,975", got)
	}
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	last := b.evaluate(svg + `.dataset.values.split(" ").at(-2)`)
	if got := value(); !strings.HasSuffix(got, ": "+last) {
		t.Errorf("left of the last value it shows %q, want %s", got, last)
	}
	b.evaluate(svg + `.focus()`)
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'SEND_WELCOME' FROM generate_series(1, 1000)`)
	b.await(`document.querySelector("#tiles").innerText.includes("2,975")`, "the tiles")
	b.await(svg+`.parentElement.querySelector("output").textContent !== "" && document.activeElement === `+svg, "its value after an update")
}

// Escape closes the question of a bulk action, and nothing was done.
func TestABulkActionIsADialog(t *testing.T) {
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	b.do(chromedp.EmulateViewport(1280, 900))
	b.open("dead")
	for _, closes := range []chromedp.Action[chromedp.Void]{chromedp.KeyEvent("\x1b"), chromedp.Click(chromedp.CSS("#ask [data-close]"))} {
		b.do(chromedp.Click(chromedp.CSS("#bulk-purge")))
		b.await(`document.querySelector("dialog").open`, "the dialog")
		b.awaitText("Purge 53 dead letters")
		b.do(closes)
		b.await(`!document.querySelector("dialog").open && !document.querySelector("#confirm")`, "the end of the dialog")
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 53 {
		t.Errorf("%d dead letters are left, want 53", n)
	}
	b.do(chromedp.Click(chromedp.CSS("#bulk-purge")))
	b.awaitText("Purge 53 dead letters")
	b.do(chromedp.Click(chromedp.CSS("#confirm")))
	b.awaitText("53 of 53 purged")
	b.do(chromedp.KeyEvent("\x1b"))
	b.awaitText("There are no dead letters.")
}
