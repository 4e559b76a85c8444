package browsertest_test

import (
	"database/sql"
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

// With script a bulk action sends request after request, and leaves the focus on the link back.
func TestABulkActionGoesOnByItself(t *testing.T) {
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
		dashboardtest.Bury(t, db, "BULK", "attempts", "connection refused", 1, 3500)
	})
	db.Do(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.2); RETURN NULL; END $$;
		CREATE TRIGGER slow AFTER DELETE ON outbox.dead_task FOR EACH STATEMENT EXECUTE FUNCTION slow()`) // two transactions a request
	b.do(chromedp.EmulateViewport(1280, 900))
	b.open("dead")
	click := func(selector, says string) {
		t.Helper()
		b.await(`document.querySelector(`+quote(selector)+`) !== null`, selector)
		b.do(chromedp.Click(chromedp.CSS(selector)))
		b.awaitText(says)
	}
	b.do(chromedp.SetJavascriptAttribute(chromedp.CSS("#f-type"), "value", "BULK"), chromedp.SendKeys(chromedp.CSS("#f-error"), "refused"))
	click(".filter button", "of type BULK")
	first := b.evaluate(`document.querySelector("#live tbody a").textContent`)
	click("#next", "First page")
	if b.evaluate(`document.querySelector("#live tbody a").textContent`) == first {
		t.Error("the next page is the first one")
	}
	click("#bulk-redrive", "3,500 dead letters")
	click("#confirm", "It goes on for as long as this page is open.")
	// A busy server may have had no time to count all before.
	b.await(`/3,500( of 3,500)? redriven/.test(document.body.innerText)`, "all to be redriven")
	b.await(`document.activeElement.id === "back"`, "the focus on the link back")
	click("#back", "No dead letter matches.")
	b.do(chromedp.SendKeys(chromedp.CSS("#find"), first+"\r"))
	b.awaitText("Task " + first)
}

const placeOfCancel = `(r => [r.left, r.top, r.width].join(" "))(document.getElementById("cancel").getBoundingClientRect())`

// What changes appears by itself, with the focus where it was; the switch stops it.
func TestPagesKeepThemselvesUpToDate(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", dashboardtest.Fill)
	b.open("")
	b.awaitText("Task types")
	b.evaluate(`window.stays = true`)
	b.do(chromedp.Focus(chromedp.CSS(`a[href="./type?name=SEND_WELCOME"]`)))
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'SEND_WELCOME' FROM generate_series(1, 1000)`)
	b.await(`document.querySelector("#tiles").innerText.includes("2,975")`, "the tiles")
	b.await(`[...document.querySelectorAll("tbody tr")].some(r => r.innerText.includes("SEND_WELCOME") && r.innerText.includes("1,120"))`, "the row")
	if got := b.evaluate(`window.stays + document.activeElement.getAttribute("href")`); got != "true./type?name=SEND_WELCOME" {
		t.Errorf("the page was loaded again, or the focus is lost: %s", got)
	}
	db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ('A_NEW_ONE')`)
	b.awaitText("A_NEW_ONE")

	// A task that becomes due while its page is open: Cancel stays where it is.
	later := strconv.Itoa(db.Int(t, `SELECT max(task_id) FROM outbox.task WHERE task_type = 'REINDEX_SEARCH'`))
	b.open("task?id=" + later)
	b.await(`document.querySelector("#run-now") !== null`, "run now")
	place := b.evaluate(placeOfCancel)
	db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE task_id = $1`, later)
	b.await(`document.querySelector("#run-now") === null`, "run now is off")
	if got := b.evaluate(placeOfCancel); got != place {
		t.Errorf("Cancel is at %s, and was at %s", got, place)
	}
	b.do(chromedp.Click(chromedp.CSS(`button[name="updates"]`)))
	b.await(`document.querySelector('button[name="updates"]').getAttribute("aria-pressed") === "false"`, "the switch")
	if got := b.evaluate(`document.querySelectorAll("[hx-trigger]").length + location.pathname`); got != "0/outbox/task" {
		t.Errorf("updates are off, and the page is %s", got)
	}
}
