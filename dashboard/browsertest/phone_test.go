package browsertest_test

import (
	"database/sql"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
)

// On a phone the search for a task stays, and two types with five dead letters take two screens.
func TestAPhoneShowsTheEssentialsOnTwoScreens(t *testing.T) {
	t.Parallel()
	b, _ := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
		dashboardtest.Bury(t, db, "SEND_WELCOME", "attempts", "smtp: 550 5.1.1 <nobody@exmaple.com>: recipient address rejected: user unknown", 1, 3)
		dashboardtest.Bury(t, db, "RESIZE_IMAGE", "attempts", "resize: decode upload/2026/11/IMG_2231.heic: image: unknown format", 10, 2)
	})
	const width, height = 390, 844
	b.do(chromedp.EmulateViewport(width, height))
	for _, path := range []string{"", "dead"} {
		b.open(path)
		b.await(`document.readyState === "complete"`, "the page")
		if b.evaluate(`document.documentElement.scrollHeight <= 2*844`) != "true" {
			t.Errorf("%q is %s pixels high, more than two screens of %d", path, b.evaluate(`document.documentElement.scrollHeight`), height)
		}
		if b.evaluate(`(r => r.width > 0 && r.right <= 390 && r.bottom < 300)(document.getElementById("find").getBoundingClientRect())`) != "true" {
			t.Errorf("%q has no search for a task on its first screen", path)
		}
	}
}
