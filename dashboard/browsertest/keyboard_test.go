package browsertest_test

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// Redrive a dead letter without a pointer: from the overview, by Tab and Enter alone, with the
// focus in sight all the way.
func TestADeadLetterIsRedrivenByKeyboard(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	tabTo := func(what, is string) {
		t.Helper()
		for range 80 {
			b.do(chromedp.KeyEvent("\t"))
			// The skip link's target is focused a second time in some browsers, after a Tab; no Tab
			// leads to it.
			if b.evaluate(`(() => { const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
				return e !== document.body && e.tabIndex >= 0 && (s.outlineStyle === "none" || r.bottom <= 0 || r.top >= innerHeight || r.right <= 0) })()`) == "true" {
				t.Errorf("the focus on %s cannot be seen", b.evaluate(`document.activeElement.outerHTML`))
			}
			if b.evaluate(`(e => `+is+`)(document.activeElement)`) == "true" {
				return
			}
		}
		t.Fatalf("80 times Tab do not lead to %s", what)
	}
	b.open("")
	tabTo("the link to the content", `e.className === "skip"`)
	tabTo("dead letters", `e.textContent.startsWith("Dead letters")`)
	b.do(chromedp.KeyEvent("\r"))
	b.awaitText("53 dead letters")
	tabTo("the link to the content", `e.className === "skip"`)
	b.do(chromedp.KeyEvent("\r"))
	b.await(`document.activeElement.id === "main"`, "the focus on the content")
	tabTo("the field of the error", `e.id === "f-error"`)
	b.do(chromedp.KeyEvent("has no address"), chromedp.KeyEvent("\r"))
	b.awaitText("3 of 53 dead letters")
	tabTo("a button to redrive", `e.id === "redrive-900101"`)
	b.do(chromedp.KeyEvent("\r"))
	b.awaitText("The dead letter is a task again.")
	tabTo("redrive all", `e.id === "bulk-redrive"`)
	b.do(chromedp.KeyEvent("\r"))
	b.awaitText("2 dead letters")
	tabTo("the confirmation", `e.id === "confirm"`)
	b.do(chromedp.KeyEvent(" "))
	b.awaitText("Done.")
	b.await(`document.activeElement.id === "back"`, "the focus on the link back")
	b.do(chromedp.KeyEvent("\r"))
	b.awaitText("No dead letter matches.")
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_id IN (900101, 900102, 900103)`); n != 3 {
		t.Errorf("%d were redriven, want 3", n)
	}
}
