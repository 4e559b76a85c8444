package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/testing/whytest"
)

// A cause that nothing but an operator or a deploy ends is a "warning task 1", others are "info task 1".
func TestTheDoctorSaysWhyATaskWaits(t *testing.T) {
	t.Parallel()
	for _, c := range whytest.All() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			db := relaytest.Open(t, relaytest.Migrated(t))
			whytest.Plant(t, db.DB, c)
			found, err := doctor.Check(t.Context(), db.DB, doctor.Task(1))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
				return f.Check == "task" && f.Subject == "task 1" && strings.Contains(f.Message, c.Says)
			}) {
				t.Errorf("the findings %+v do not say %q", found, c.Says)
			}
		})
	}
}
