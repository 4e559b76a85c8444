package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/txoutbox/outbox/bench/measure"
)

// report is benchmarks.md and its charts.
type report struct {
	env      environment
	samples  *measure.Samples
	verdicts []verdict
	cases    []benchCase
	seconds  float64
	quick    bool
	rounds   int
	charts   map[string][]byte // by file name
}

// writeReport writes the report into a directory.
func (b *bench) writeReport(dir string, env environment, verdicts []verdict) error {
	r := report{env: env, samples: b.samples, verdicts: verdicts, cases: cases(), seconds: b.elapsed(), quick: b.opts.quick, rounds: b.plan.rounds, charts: map[string][]byte{}}
	text, err := r.markdown()
	if err != nil {
		return err
	}
	charts := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return err
	}
	for name, svg := range r.charts {
		if err := os.WriteFile(filepath.Join(charts, name), svg, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), text, 0o644)
}

func (r *report) markdown() ([]byte, error) {
	var w bytes.Buffer
	fmt.Fprint(&w, "# Benchmarks\n\nThe program in [bench](../bench) measures and writes this: all numbers are of the one run described here, none is from elsewhere.\n\n")
	r.conditions(&w)
	r.targets(&w)
	r.againstRiver(&w)
	for _, c := range r.cases {
		if err := r.section(&w, c); err != nil {
			return nil, err
		}
	}
	return w.Bytes(), nil
}

func (r *report) conditions(w *bytes.Buffer) {
	size := ""
	if r.quick {
		size = " A quick run: smaller backlogs and shorter turns."
	}
	fmt.Fprintf(w, `## What was measured, and on what

`+"`%s`"+` on %s, revision %s, %.0f minutes.%s

- %s, %d cores, %.0f GB, %s; client and server on the same machine, over loopback, so they share the cores. The ratios carry over to other machines better than the rates.
- %s; `, r.env.Command, r.env.Date, r.env.Revision, r.seconds/60, size, r.env.CPU, r.env.Cores, r.env.MemoryGB, r.env.System, r.env.Go)
	var modules, settings []string
	for _, m := range r.env.Modules {
		modules = append(modules, m[0]+" "+m[1])
	}
	for _, s := range r.env.Settings {
		settings = append(settings, s[0]+" = "+s[1])
	}
	fmt.Fprintf(w, "%s. Ours and the bare statements run on lib/pq, River on pgx.\n- PostgreSQL: %s.\n", strings.Join(modules, ", "), strings.Join(settings, ", "))
	fmt.Fprintf(w, `- What is compared takes turns in this one run, %d rounds: each turn starts from a copy of the same vacuumed and analyzed database, after a checkpoint. The clock of a turn
  starts with its first task; it ends when nothing is left, or after a fixed time, and then what is done in the database counts. Numbers are medians over the rounds, with the least and the most; ratios are
  taken round by round.
- "Raw" is the limit: the bare SQL statements of the same work, prepared, driven by goroutines, with no library.

`, r.rounds)
}

func (r *report) targets(w *bytes.Buffer) {
	fmt.Fprint(w, "## Targets\n\n| Target | Bound | Measured | |\n|---|---|---|---|\n")
	for _, v := range r.verdicts {
		unit := ""
		if v.Compared {
			unit = "x"
		}
		measured, outcome := "", v.Outcome
		if v.Got.N > 0 {
			measured = cellWith(v.Got, unit)
		}
		if v.Outcome == outcomeExcused {
			outcome = fmt.Sprintf("below, as is the raw limit: %s%s", number(v.RawGot), unit)
		}
		fmt.Fprintf(w, "| %s | %s %s%s | %s | %s |\n", v.What, map[string]string{atLeast: "at least", atMost: "at most"}[v.Op], trimmed(v.Bound), unit, measured, outcome)
	}
	fmt.Fprint(w, "\nx is a ratio, round by round, to what the target names. A target that is missed counts as missed unless the raw limit of the same run misses it too.\n\n")
}

func (r *report) againstRiver(w *bytes.Buffer) {
	var rows []string
	for _, v := range comparisons() {
		ratio := measure.Ratio(r.samples.Rounds(v.Case, v.Ours, v.Metric), r.samples.Rounds(v.Case, v.River, v.Metric))
		if ratio.N == 0 {
			continue
		}
		better := "ours"
		if (ratio.Median < 1) != v.Less {
			better = "River"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", v.What, v.Metric, number(r.samples.Of(v.Case, v.Ours, v.Metric).Median),
			v.River, number(r.samples.Of(v.Case, v.River, v.Metric).Median), cellWith(ratio, "x"), better))
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprint(w, "## Beside River\n\n| | | ours | River | | ours / River | better |\n|---|---|---|---|---|---|---|\n", strings.Join(rows, ""), "\n")
}

func (r *report) section(w *bytes.Buffer, c benchCase) error {
	sides := r.samples.Sides(c.name, "")
	if len(sides) == 0 {
		return nil
	}
	fmt.Fprintf(w, "## %s\n\n%s\n\n", upper(c.title), c.says)
	if err := r.charted(w, c, sides); err != nil {
		return err
	}
	fmt.Fprintf(w, "| | %s |\n|---|%s\n", strings.Join(c.metrics, " | "), strings.Repeat("---|", len(c.metrics)))
	for _, side := range sides {
		var cells []string
		for _, m := range c.metrics {
			cells = append(cells, cell(r.samples.Of(c.name, side, m)))
		}
		if slices.ContainsFunc(cells, func(s string) bool { return s != "" }) {
			fmt.Fprintf(w, "| %s | %s |\n", side, strings.Join(cells, " | "))
		}
	}
	fmt.Fprintln(w)
	return nil
}

// charted draws the charts of a case.
func (r *report) charted(w *bytes.Buffer, c benchCase, sides []string) error {
	add := func(suffix, alt string, svg []byte, err error) error {
		if err != nil {
			return err
		}
		name := c.name + suffix + ".svg"
		r.charts[name] = svg
		fmt.Fprintf(w, "![%s](benchmarks/%s)\n\n", alt, name)
		return nil
	}
	if c.chart != "" {
		var bars []bar
		for _, side := range sides {
			if s := r.samples.Of(c.name, side, c.chart); s.N > 0 {
				bars = append(bars, bar{side, s.Median, colorOf(side)})
			}
		}
		if len(bars) > 0 {
			svg, err := barChart(upper(c.title)+": "+c.chart, bars)
			if err := add("", c.title+": "+c.chart, svg, err); err != nil {
				return err
			}
		}
	}
	if c.lines == "" {
		return nil
	}
	var lines []line
	for _, side := range sides {
		l := line{Name: side, Color: colorOf(side)}
		for i := 0; ; i++ {
			s := r.samples.Of(c.name, side, windowMetric(i))
			if s.N == 0 {
				break
			}
			l.Values = append(l.Values, s.Median)
		}
		if len(l.Values) > 1 {
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	svg, err := lineChart(upper(c.title)+": tasks/s by window", lines)
	return add("-windows", c.title+": tasks/s by window", svg, err)
}

// colorOf is the color of the peer that a side's name begins with.
func colorOf(side string) string {
	for prefix, peer := range map[string]string{"River": peerRiver, "raw": peerRaw, "bare": peerRaw, "watermill": peerWatermill} {
		if strings.HasPrefix(side, prefix) {
			return colors[peer]
		}
	}
	return colors[""]
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
