package browsertest_test

import (
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

// Redrive a dead letter without a pointer: from the overview, by Tab and Enter alone, with the
// focus in sight all the way.
func TestADeadLetterIsRedrivenByKeyboard(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	b.do(chromedp.EmulateViewport(1280, 900))
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
	// Cancel a task: its page, the question, the answer.
	ready := strconv.Itoa(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE task_type = 'GRANT_CREDIT'`))
	b.open("task?id=" + ready)
	tabTo("cancel", `e.id === "cancel"`)
	b.do(chromedp.KeyEvent("\r"))
	b.awaitText("It cannot be undone.")
	tabTo("the confirmation", `e.id === "confirm"`)
	b.do(chromedp.KeyEvent(" "))
	b.awaitText("The task is canceled.")
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_id = $1`, ready); n != 0 {
		t.Error("the task is there yet")
	}
	// Each control has a name, each table its headers, each page one heading of the first level.
	for _, path := range []string{"", "type?name=SEND_WELCOME", "task?id=900001&payload=show", "cancel?id=1", "dead", "bulk?do=purge", "schedules", "relays", "audit"} {
		b.open(path)
		got := b.evaluate(`(() => {
			const named = e => (e.getAttribute("aria-label") || e.textContent.trim() || [...(e.labels || [])].map(l => l.textContent).join("")).trim() !== "";
			const bad = [...document.querySelectorAll("button, a, select, input:not([type=hidden])")].filter(e => !named(e));
			for (const tr of document.querySelectorAll("tbody tr")) if (tr.children.length !== tr.closest("table").querySelectorAll("thead th[scope=col]").length) bad.push(tr);
			if (document.querySelectorAll("h1").length !== 1 || !document.documentElement.lang || !document.querySelector("main")) bad.push(document.body);
			const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
			return bad.map(e => e.outerHTML.slice(0, 200)).join("; ") + ids.filter((id, i) => ids.indexOf(id) !== i).join(" ");
		})()`)
		if got != "" {
			t.Errorf("%s: %s", path, got)
		}
	}
}
