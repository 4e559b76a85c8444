//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func parsed(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestTheSameSeedGivesTheSameSchedule(t *testing.T) {
	one := schedule(parsed(t, "-seed", "7", "-for", "5m"))
	if again := schedule(parsed(t, "-seed", "7", "-for", "5m")); !reflect.DeepEqual(one, again) {
		t.Error("another schedule for the same seed")
	}
	if other := schedule(parsed(t, "-seed", "8", "-for", "5m")); reflect.DeepEqual(one, other) {
		t.Error("the same schedule for another seed")
	}
	seen := map[string]int{}
	for i, d := range one {
		seen[d.fault.name]++
		if i > 0 && d.at <= one[i-1].at || d.at > 5*time.Minute {
			t.Fatalf("the %d. fault is at %v", i, d.at)
		}
	}
	for _, f := range faults {
		if want := !slices.Contains(notInAll, f.name); (seen[f.name] > 0) != want {
			t.Errorf("%s is in the schedule %d times", f.name, seen[f.name])
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for args, want := range map[string]string{
		"-faults kill,typhoon": `there is no "typhoon"`,
		"-driver mysql":        `want pq, pgx or pgxpool`,
		"-for 10ms":            "-for must be 1s",
		"-producers 0":         "-producers and -slices 1",
		"now":                  `unknown argument "now"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
	if o := parsed(t, "-faults", "all, clock"); !o.has("clock") || !o.has("kill") || o.has("ahead") {
		t.Errorf("all,clock are %v", o.faults)
	}
	if o := parsed(t, "-faults", "none"); len(o.faults) != 0 || len(schedule(o)) != 0 {
		t.Errorf("none are %v", o.faults)
	}
}

// Each seeded bug still has its place in the sources, and the tests that are to notice it exist.
// Whether it is noticed is for -mutation to show.
func TestEachMutantAppliesToTheSources(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	names := map[string]bool{}
	for _, m := range mutants {
		if _, err := m.mutated(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if names[m.name] || (m.run.length > 0) == (m.tests.pattern != "") {
			t.Errorf("%s: its name is another's, or there is not just one way to notice it", m.name)
		}
		names[m.name] = true
		files, err := filepath.Glob(filepath.Join(root, m.tests.dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		test, _, _ := strings.Cut(m.tests.pattern, "$")
		if test != "" && !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(string(text), "\nfunc "+test+"(t *testing.T)")
		}) {
			t.Errorf("%s: %s has no test %s", m.name, m.tests.dir, test)
		}
	}
}

func TestMutantsAreChosenByName(t *testing.T) {
	for list, want := range map[string]int{"all": len(mutants), "runs": len(runMutants), "tests": len(testMutants), "cursor, no-heartbeat": 2} {
		if chosen, err := chosenMutants(list); err != nil || len(chosen) != want {
			t.Errorf("%s: %d mutants, error %v, want %d", list, len(chosen), err, want)
		}
	}
	if _, err := chosenMutants("cursor,typhoon"); err == nil || !strings.Contains(err.Error(), `there is no "typhoon"`) {
		t.Errorf("got %v, want an error that names what there is not", err)
	}
}
