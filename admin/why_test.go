package admin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/testing/whytest"
)

// untilKnown are the causes whose end is known.
var untilKnown = []admin.CauseKind{admin.CauseScheduled, admin.CauseRetrying, admin.CauseThrottled,
	admin.CauseUnreadable, admin.CauseRate, admin.CauseOrdered}

// checkWhy asks why task 1 waits, and compares the answer with what was planted.
func checkWhy(t *testing.T, db *database, planted ...whytest.Cause) {
	t.Helper()
	why, err := relaytest.Admin(t, db.DB).Why(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range planted {
		i := slices.IndexFunc(why.Causes, func(c admin.Cause) bool { return c.Kind == want.Kind })
		if i < 0 || !strings.Contains(why.Causes[i].Text, want.Says) {
			t.Errorf("%s: the causes are %+v, want %s: %s", want.Name, why.Causes, want.Kind, want.Says)
			continue
		}
		if c := why.Causes[i]; c.Until.IsZero() == slices.Contains(untilKnown, c.Kind) {
			t.Errorf("%s: until %v", want.Name, c.Until)
		}
	}
	for _, c := range why.Causes {
		if strings.Contains(c.Text+c.Remedy, "s3cret") {
			t.Errorf("the cause %+v has a key or a payload", c)
		}
	}
	if len(why.Causes) != len(planted) {
		t.Errorf("the causes are %+v, want %d", why.Causes, len(planted))
	}
}

func TestEachCauseForWhichATaskWaitsIsSaid(t *testing.T) {
	t.Parallel()
	for _, c := range whytest.All() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			db := relaytest.Open(t, relaytest.Migrated(t))
			whytest.Plant(t, db.DB, c)
			checkWhy(t, db, c)
		})
	}
}

func TestTwoCausesAreBothSaid(t *testing.T) {
	t.Parallel()
	for i, a := range whytest.Others {
		for _, b := range slices.Concat(whytest.States, whytest.Others[i+1:]) {
			if b.Apart || a.Name == "no handler" && b.Handled {
				continue
			}
			t.Run(a.Name+" and "+b.Name, func(t *testing.T) {
				t.Parallel()
				db := relaytest.Open(t, relaytest.Migrated(t))
				whytest.Plant(t, db.DB, b, a)
				checkWhy(t, db, a, b)
			})
		}
	}
}
