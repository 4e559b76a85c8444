package dashboard_test

import (
	"html"
	"slices"
	"testing"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/whytest"
)

func TestThePageOfATaskSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	ended := []admin.CauseKind{admin.CauseGone, admin.CauseDead, admin.CauseFinished, admin.CauseRunning}
	for _, c := range whytest.All() {
		if slices.Contains(ended, c.Kind) { // the page says that itself
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			whytest.Plant(t, db.DB, c)
			s := serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessView)})
			s.get(t, "task?id=1").has(t, 200, "Why it waits", html.EscapeString(c.Says))
		})
	}
}
