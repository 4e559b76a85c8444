//go:build browser

package dashboard_test

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestThePageSearchesOnByItself(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	chromium := needsBrowser(t)
	db := newDatabase(t)
	bury(t, db, "MAIL", "attempts", "boom", 1, 7_000)
	exec(t, db, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id = 7000`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	s.handler.SetPatience(0)
	b := openBrowser(t, chromium)
	b.open(s.URL + "/outbox/dead")
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), "rare"), chromedp.Click(chromedp.CSS(".filter button")))
	b.awaitText("a rare one")
	b.await(`document.querySelector("#task-7000") !== null`, "the oldest dead letter")
	b.do(chromedp.Click(chromedp.CSS("#first"))) // and again
	b.await(`document.querySelector("#task-7000") !== null`, "the oldest dead letter, again")
	b.do(chromedp.SendKeys(chromedp.CSS("#f-error"), " none"), chromedp.Click(chromedp.CSS(".filter button")))
	b.awaitText("No older dead letter is like that.")
}
