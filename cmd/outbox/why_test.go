package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/testing/whytest"
)

func TestShowSaysWhyATaskWaits(t *testing.T) {
	t.Parallel()
	for _, c := range whytest.All() {
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

var ofCommand = regexp.MustCompile(`outbox [a-z][a-z-]*( [a-z][a-z-]*)?`)

// What a remedy tells to type is there.
func TestTheCommandsOfRemediesExist(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range whytest.All() {
		db := newDB(t)
		whytest.Plant(t, db.DB, c)
		why, err := relaytest.Admin(t, db.DB).Why(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, cause := range why.Causes {
			for _, text := range ofCommand.FindAllString(cause.Remedy, -1) {
				args := strings.Fields(text)[1:]
				if seen[text] {
					continue
				}
				seen[text] = true
				r := db.run(t, append(args, "--help")...)
				alone := len(args) == 1 && strings.Contains(r.out, "outbox "+args[0]+" [flags]")
				group := strings.Contains(r.out, "[command]") && !alone // the second word is not one of its commands
				if r.code != 0 || !strings.Contains(r.out, "outbox "+args[0]) || group {
					t.Errorf("%s: %+v", text, r)
				}
			}
		}
	}
	if len(seen) < 5 {
		t.Errorf("only %v are in remedies", seen)
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
