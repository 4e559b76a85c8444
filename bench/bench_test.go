package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	runIfChild()
	os.Exit(m.Run())
}

// tiny is a plan whose numbers mean nothing.
func tiny() plan {
	return plan{
		rounds: 1, backlog: 2000, large: 20_000, huge: 20_000,
		burn: 200 * time.Millisecond, short: 100 * time.Millisecond, insert: 200 * time.Millisecond, long: time.Second,
		enqueue: 100 * time.Millisecond, many: 5000, held: 200 * time.Millisecond,
		heldWindow: 100 * time.Millisecond, dead: 100 * time.Millisecond,
		pickups: 1, gap: time.Millisecond, pollers: 2, polls: 1, claims: 30, idle: 100 * time.Millisecond,
		walTasks: 500, settle: 300 * time.Millisecond,
	}
}

// A case runs to its end on a real server, measures what its targets ask for, and is in the report.
// With OUTBOX_TEST_LONG=1 it is every case, else one of each sort: rates, transactions, times,
// bytes.
func TestEveryCaseMeasuresWhatItsTargetsName(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	o := options{quick: true, rounds: 1, report: dir}
	if os.Getenv("OUTBOX_TEST_LONG") == "" {
		o.cases = []string{"burndown", "enqueue", "latency", "wal"}
	}
	runs := func(name string) bool { return o.cases == nil || slices.Contains(o.cases, name) }
	r, err := run(t.Context(), o, tiny(), &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, v := range r.verdicts {
		if v.Got.N == 0 && runs(v.Case) {
			t.Errorf("%s: %s: not measured", v.Case, v.What)
		}
	}
	for _, name := range caseNames() {
		if len(r.samples.Sides(name)) == 0 && runs(name) {
			t.Errorf("%s has no samples", name)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range comparisons() {
		if runs(v.Case) && !strings.Contains(string(text), fmt.Sprintf("| %s | %s |", v.What, v.Metric)) {
			t.Errorf("the report does not compare %s, %s, with River", v.What, v.Metric)
		}
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-case", "nothing"}, {"-rounds", "0"}, {"word"}} {
		if _, err := parseOptions(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
	o, err := parseOptions([]string{"-quick", "-check", "-case", "wal, idle", "-report", "/a/b"}, &bytes.Buffer{})
	if err != nil || !o.quick || !o.check || len(o.cases) != 2 || o.report != "/a/b" {
		t.Errorf("options %+v, %v", o, err)
	}
	if got, want := o.String(), "go run . -quick -check -case wal,idle"; got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}
}
