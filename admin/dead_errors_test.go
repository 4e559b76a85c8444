package admin_test

import (
	"fmt"
	"testing"

	"github.com/txoutbox/outbox/admin"
)

func TestDeadLettersAreGroupedByTypeAndError(t *testing.T) {
	onEachDriver(t, func(t *testing.T, db *database) {
		for n := range 4 {
			bury(t, db, "A", "handler", fmt.Sprintf("order %d: user 0197a1f2-7c11-4000-8000-00000000000%d is gone\nmore %d", n, n, n), 1+n, 1, 10)
			bury(t, db, "A", "handler", fmt.Sprintf("timeout after %d s", n), 11+n, 1, 60)
		}
		bury(t, db, "B", "handler", "timeout after 1 s", 21, 1, 70)
		bury(t, db, "A", "handler", "", 31, 1, 80)
		got, err := client(t, db.DB).DeadErrors(t.Context(), admin.Filter{})
		if err != nil || len(got) != 4 {
			t.Fatalf("got %+v, %v, want four groups", got, err)
		}
		for i, want := range []admin.DeadError{
			{Type: "A", Error: "order #: user # is gone", Count: 4}, {Type: "A", Error: "timeout after # s", Count: 4},
			{Type: "B", Error: "timeout after # s", Count: 1}, {Type: "A", Count: 1},
		} {
			if g := got[i]; g.Type != want.Type || g.Error != want.Error || g.Count != want.Count || g.Latest.IsZero() || i > 0 && g.Count == got[i-1].Count && g.Latest.After(got[i-1].Latest) {
				t.Errorf("group %d: got %+v, want %+v", i, g, want)
			}
		}
		if got, err := client(t, db.DB).DeadErrors(t.Context(), admin.Filter{Type: "B"}); err != nil || len(got) != 1 || got[0].Count != 1 {
			t.Errorf("of B: %+v, %v", got, err)
		}
	})
}
