package browsertest_test

import (
	"database/sql"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestThePageSearchesOnByItself(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) { dashboardtest.Bury(t, db, "MAIL", "attempts", "boom", 1, 7_000) })
	db.Do(t, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id = 7000`)
	dashboardtest.SlowDown(t, db.DB, "id % 1000 = 500", 0.1) // each look takes longer than a page may search
	b.open("dead")
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), "rare"), chromedp.Click(chromedp.CSS(".filter button")))
	b.awaitText("a rare one")
	b.await(`document.querySelector("#task-7000") !== null`, "the oldest dead letter")
	b.do(chromedp.Click(chromedp.CSS("#first"))) // and again
	b.await(`document.querySelector("#task-7000") !== null`, "the oldest dead letter, again")
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), " none"), chromedp.Click(chromedp.CSS(".filter button")))
	b.awaitText("No older dead letter matches.")
}
