package browsertest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// OUTBOX_SCREENSHOTS names a directory for pictures of the pages, like docs/screenshots. Without it
// the pages are only laid out.
func TestPagesFitTheirWindow(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	chromium := needsBrowser(t)
	db := relaytest.Open(t, relaytest.Migrated(t))
	dashboardtest.Fill(t, db.DB)
	url := serve(t, db, "ada@example.com")
	b := openBrowser(t, chromium)
	for _, shot := range []struct {
		name, scheme, path string
		width, height      int64
	}{
		{"overview-light", "light", "", 1280, 1000},
		{"overview-dark", "dark", "", 1280, 1000},
		{"type", "light", "type?name=SEND_WELCOME&state=scheduled", 1280, 900},
		{"task", "light", "task?id=900001&payload=show", 1280, 1000},
		{"task-dark", "dark", "task?id=900301", 1280, 800},
		{"dead-letters", "light", "dead?type=SEND_WELCOME&error=user+unknown", 1280, 800},
		{"dead-dark", "dark", "dead", 1280, 800},
		{"cancel", "light", "cancel?id=1", 1280, 600},
		{"bulk", "light", "bulk?do=purge&type=SEND_WELCOME", 1280, 600},
		{"schedules", "light", "schedules", 1280, 500},
		{"relays", "dark", "relays", 1280, 800},
		{"audit", "light", "audit", 1280, 500},
		{"problem", "light", "task?id=1", 1280, 500},
		{"phone", "light", "", 390, 844},
		{"phone-dead", "dark", "dead", 390, 844},
		{"phone-task", "light", "task?id=900001&payload=show", 390, 844},
		{"phone-cancel", "dark", "cancel?id=130", 390, 844},
		{"phone-task-live", "light", "task?id=1", 390, 844},
		{"task-live", "light", "task?id=1", 1280, 700},
		{"phone-relays", "light", "relays", 390, 844},
		{"phone-type", "light", "type?name=SEND_WELCOME", 390, 844},
	} {
		b.media(shot.scheme)
		b.do(chromedp.EmulateViewport(shot.width, shot.height))
		b.open(url + shot.path)
		b.await(`document.readyState === "complete"`, "the page")
		if wide := b.evaluate(`document.documentElement.scrollWidth > window.innerWidth`); wide == "true" {
			t.Errorf("%s is wider than its window: %s of %d", shot.name, b.evaluate(`document.documentElement.scrollWidth`), shot.width)
		}
		if dir := os.Getenv("OUTBOX_SCREENSHOTS"); dir != "" {
			png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, shot.name+".png"), png, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
