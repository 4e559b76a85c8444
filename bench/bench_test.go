package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

func TestMain(m *testing.M) {
	runIfChild()
	os.Exit(m.Run())
}

// tiny is a plan whose numbers mean nothing.
func tiny() plan {
	return plan{
		rounds: 1, backlog: 2000, large: 20_000,
		burn: 200 * time.Millisecond, short: 100 * time.Millisecond, insert: 200 * time.Millisecond, long: time.Second,
		enqueue: 100 * time.Millisecond, many: 5000, held: 200 * time.Millisecond,
		heldWindow: 100 * time.Millisecond, dead: 100 * time.Millisecond,
		pickups: 1, keyed: 1000, gap: time.Millisecond, pollers: 2, polls: 1, idle: 100 * time.Millisecond,
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
	for _, v := range comparisons {
		if runs(v.caseName) && !strings.Contains(string(text), fmt.Sprintf("| %s | %s |", v.what, v.metric)) {
			t.Errorf("the report does not compare %s, %s, with River", v.what, v.metric)
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

// A slow machine has handled a task by the limit, and committed none.
func TestATurnLastsUntilATaskIsDone(t *testing.T) {
	looks := 0
	s := side{
		tasks: 2,
		start: func(_ context.Context, _ string, done func(int)) (func() error, error) {
			done(1)
			return func() error { return nil }, nil
		},
		left: func(context.Context, *sql.DB) (int, error) {
			if looks++; looks <= 3 {
				return 2, nil
			}
			return 1, nil
		},
	}
	w, err := workOff(t.Context(), s, &database{}, time.Nanosecond)
	if err != nil || w.done != 1 {
		t.Errorf("%d are done, %v; want 1", w.done, err)
	}
}

// sampled are three rounds of a case "c" whose sides have steady rates.
func sampled(rates map[string]float64) *measure.Samples {
	var s measure.Samples
	for side, rate := range rates {
		for round := range 3 {
			s.Add("c", side, mRate, round, rate)
		}
	}
	return &s
}

func TestTargetsHoldFailOrAreExcusedByTheRawLimit(t *testing.T) {
	ratio := target{Case: "c", What: "ours against theirs", Metric: mRate, Sides: []string{"ours"},
		Than: []string{"theirs"}, Op: atLeast, Bound: 2, Raw: []string{"raw"}}
	for _, c := range []struct {
		name   string
		rates  map[string]float64
		change func(*target)
		want   string
		says   string
	}{
		{"above", map[string]float64{"ours": 200, "theirs": 100, "raw": 900}, nil, outcomePass, "2.00x"},
		{"below", map[string]float64{"ours": 199, "theirs": 100, "raw": 900}, nil, outcomeFail, "1.99x"},
		{"below, and so is the raw limit", map[string]float64{"ours": 150, "theirs": 100, "raw": 190}, nil, outcomeExcused,
			"the raw limit itself reaches 1.90x"},
		{"below, and the raw limit was not measured", map[string]float64{"ours": 150, "theirs": 100}, nil, outcomeFail,
			"1.50x"},
		{"below, and the target has no raw limit", map[string]float64{"ours": 150, "theirs": 100, "raw": 190},
			func(t *target) { t.Raw = nil }, outcomeFail, "1.50x"},
		{"ours not measured", map[string]float64{"theirs": 100, "raw": 190}, nil, outcomeUnknown, "not measured"},
		{"theirs not measured", map[string]float64{"ours": 100, "raw": 190}, nil, outcomeUnknown, "not measured"},
		{"the best of two", map[string]float64{"ours": 100, "ours 2": 300, "theirs": 100},
			func(t *target) { t.Sides = append(t.Sides, "ours 2") }, outcomePass, "3.00x"},
		{"against the best of two", map[string]float64{"ours": 300, "theirs": 100, "theirs 2": 200},
			func(t *target) { t.Than = append(t.Than, "theirs 2") }, outcomeFail, "1.50x"},
		{"at most", map[string]float64{"ours": 150, "theirs": 100}, func(t *target) { t.Op = atMost }, outcomePass, "1.50x"},
		{"above what it may be at most", map[string]float64{"ours": 250, "theirs": 100, "raw": 150},
			func(t *target) { t.Op = atMost }, outcomeFail, "2.50x"},
		{"a value, not a ratio", map[string]float64{"ours": 1.5}, func(t *target) { t.Than = nil }, outcomeFail,
			"1.50, >= 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := ratio
			if c.change != nil {
				c.change(&target)
			}
			v := target.judge(sampled(c.rates))
			if v.Outcome != c.want {
				t.Errorf("outcome %q, want %q", v.Outcome, c.want)
			}
			if got := v.sentence(); !strings.Contains(got, c.says) {
				t.Errorf("it says %q, want %q in it", got, c.says)
			}
		})
	}
}

func TestATargetThatIsNotMeasuredInAFullRunIsMissed(t *testing.T) {
	verdicts := judge(sampled(nil), targets())
	requireAll(verdicts)
	for _, v := range verdicts {
		if v.Outcome != outcomeFail {
			t.Errorf("%s: %s, want a missed target", v.What, v.Outcome)
		}
	}
	var out bytes.Buffer
	printVerdicts(&out, verdicts)
	if n := strings.Count(out.String(), "FAIL"); n != len(verdicts) {
		t.Errorf("%d are named, want all %d", n, len(verdicts))
	}
}

func TestTargetsNameCasesAndHaveBounds(t *testing.T) {
	var seen []string
	for _, target := range targets() {
		if !slices.Contains(caseNames(), target.Case) || target.In != "" && !slices.Contains(caseNames(), target.In) {
			t.Errorf("%s: there is no case %q or %q", target.What, target.Case, target.In)
		}
		if target.Bound <= 0 || target.Op != atLeast && target.Op != atMost || len(target.Sides) == 0 ||
			target.Metric == "" {
			t.Errorf("%s: it lacks a bound, a side or a metric", target.What)
		}
		if slices.Contains(seen, target.What) {
			t.Errorf("%s: twice", target.What)
		}
		seen = append(seen, target.What)
	}
}

func TestReportHasWhatWasMeasuredAndNothingElse(t *testing.T) {
	var s measure.Samples
	for round := range 3 {
		s.Add(caseBurndown, sideBatch, mRate, round, 70_000+float64(round))
		s.Add(caseBurndown, sideRiverBench, mRate, round, 10_000)
		s.Add(caseBurndown, sideTx, mRate, round, 5_000)
	}
	r := report{samples: &s, verdicts: judge(&s, targets()), rounds: 3, quick: true,
		command: "go run . -quick",
		env: environment{date: "2026-01-02", settings: "fsync = on",
			modules: "github.com/lib/pq v1"}}
	got := r.summary()
	for _, want := range []string{
		"`go run . -quick` on 2026-01-02", "A quick run", "fsync = on", "github.com/lib/pq v1",
		"targets. 1 were reached.",
		"| no-op: " + sideBatch + " | tasks/s | 70,001 | " + sideRiverBench + " | 10,000 | 7.00x (7.00 to 7.00) | ours |",
		"| no-op: " + sideTx + " | tasks/s | 5,000 | " + sideRiverBench + " | 10,000 | 0.500x | River |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
}

func TestNumbersHaveThreeDigitsOrCommas(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.123", 9.876: "9.88", 45.67: "45.7", 999.4: "999",
		1000: "1,000", 1234567: "1,234,567", -5: "-5.00"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}
