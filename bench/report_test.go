package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/bench/measure"
)

func TestReportHasWhatWasMeasuredAndNothingElse(t *testing.T) {
	var s measure.Samples
	for round := range 3 {
		s.Add("burndown", sideBatch, mRate, round, 70_000+float64(round))
		s.Add("burndown", sideRiverBench, mRate, round, 10_000)
		s.Add("burndown", sideTx, mRate, round, 5_000)
		s.Add(caseLarge, sideBatchLarge, windowMetric(0), round, 60_000)
		s.Add(caseLarge, sideBatchLarge, windowMetric(1), round, 50_000)
	}
	r := report{samples: &s, cases: cases(), verdicts: judge(&s, targets(planOf(options{quick: true, rounds: 3}))), charts: map[string][]byte{}, rounds: 3, quick: true,
		env: environment{Command: "go run . -quick", Date: "2026-01-02", Settings: [][2]string{{"fsync", "on"}}, Modules: [][2]string{{"github.com/lib/pq", "v1"}}}}
	details, err := r.details()
	if err != nil {
		t.Fatal(err)
	}
	got := string(r.summary()) + string(details)
	for _, want := range []string{
		"`go run . -quick` on 2026-01-02", "A quick run", "fsync = on", "github.com/lib/pq v1",
		"| Batch, no-op, 200,000: against River at its benchmark's settings | at least 7x | 7.00x (7.00 to 7.00) | pass |",
		"| no-op: " + sideBatch + " | tasks/s | 70,001 | " + sideRiverBench + " | 10,000 | 7.00x (7.00 to 7.00) | ours |",
		"| no-op: " + sideTx + " | tasks/s | 5,000 | " + sideRiverBench + " | 10,000 | 0.500x | River |",
		"| " + sideBatch + " | 70,001 (70,000 to 70,002) |",
		"](burndown.svg)", "](burndown-large-windows.svg)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if strings.Contains(got, upper(walCase().title)) {
		t.Error("the report has a section of a case that was not measured")
	}
	for name, svg := range r.charts {
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
	if len(r.charts) != 2 {
		t.Errorf("%d charts, want 2", len(r.charts))
	}
}

func TestNumbersHaveThreeDigitsOrCommas(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.123", 9.876: "9.88", 45.67: "45.7", 999.4: "999", 1000: "1,000", 1234567: "1,234,567", -5: "-5.00"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}
