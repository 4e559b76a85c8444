package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/whytest"
)

func TestShowSaysWhyATaskWaits(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(whytest.States, whytest.Others, whytest.Alone) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			whytest.Plant(t, db.DB, c)
			r := db.run(t, "tasks", "show", "1")
			if says := strings.Join(strings.Fields(r.out+r.err), " "); !strings.Contains(says, c.Says) {
				t.Errorf("it says %s, want %s", r.out+r.err, c.Says)
			}
			if gone := c.Kind == admin.CauseGone; (r.code == 0) == gone {
				t.Errorf("the exit code is %d", r.code)
			}
		})
	}
}

// The doctor says it beside what else is wrong.
func TestTheDoctorIsAskedAboutATask(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	whytest.Plant(t, db.DB, whytest.Others[0])
	if r := db.run(t, "doctor", "-task", "1"); !strings.Contains(r.out, "task 1: its type is paused, by ada") {
		t.Errorf("it says %s", r.out)
	}
	db.steps(t, step{"doctor -task x", 2, "invalid"})
}
