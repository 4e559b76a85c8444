package main

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/bench/measure"
)

func TestReportHasWhatWasMeasuredAndNothingElse(t *testing.T) {
	var s measure.Samples
	for round := range 3 {
		s.Add(caseBurndown, sideBatch, mRate, round, 70_000+float64(round))
		s.Add(caseBurndown, sideRiverBench, mRate, round, 10_000)
		s.Add(caseBurndown, sideTx, mRate, round, 5_000)
	}
	r := report{samples: &s, verdicts: judge(&s, targets(planOf(true, 3))), rounds: 3, quick: true,
		command: "go run . -quick",
		env: environment{date: "2026-01-02", settings: [][2]string{{"fsync", "on"}},
			modules: [][2]string{{"github.com/lib/pq", "v1"}}}}
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
