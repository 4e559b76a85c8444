package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/bench/measure"
)

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
	verdicts := judge(sampled(nil), targets(planOf(false, 3)))
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
	for _, quick := range []bool{false, true} {
		var seen []string
		for _, target := range targets(planOf(quick, 3)) {
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
}
