package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/txoutbox/outbox/bench/measure"
)

// report is benchmarks.md, and benchmarks/details.md with its charts.
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
	details, err := r.details()
	if err != nil {
		return err
	}
	files := map[string][]byte{"../benchmarks.md": r.summary(), "details.md": details}
	maps.Copy(files, r.charts)
	in := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(in, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(in, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) summary() []byte {
	var w bytes.Buffer
	fmt.Fprint(&w, `# Benchmarks

The program in [bench](../bench) measures and writes this page. All numbers are of one run.
`+"`cd bench && go run . -quick`"+` measures yours; `+"`-report DIR`"+` also writes each case, with its
charts, to DIR/benchmarks/details.md.

`)
	r.conditions(&w)
	r.missed(&w)
	r.againstRiver(&w)
	return w.Bytes()
}

func (r *report) details() ([]byte, error) {
	var w bytes.Buffer
	fmt.Fprint(&w, "# Benchmarks by case\n\n## Targets\n\n", targetsHead)
	for _, v := range r.verdicts {
		fmt.Fprint(&w, targetRow(v))
	}
	fmt.Fprintln(&w)
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
	fmt.Fprintf(w, `## Conditions

`+"`%s`"+` on %s, revision %s, %.0f minutes.%s

- %s, %d cores, %.0f GB, %s. Client and server share the cores, over loopback.
  Ratios carry over to other machines better than rates.
- %s; `, r.env.Command, r.env.Date, r.env.Revision, r.seconds/60, size, r.env.CPU, r.env.Cores, r.env.MemoryGB, r.env.System, r.env.Go)
	var modules, settings []string
	for _, m := range r.env.Modules {
		modules = append(modules, m[0]+" "+m[1])
	}
	for _, s := range r.env.Settings {
		settings = append(settings, s[0]+" = "+s[1])
	}
	fmt.Fprintf(w, "%s. Ours and the bare statements run on lib/pq, River on pgx.\n- PostgreSQL: %s.\n", strings.Join(modules, ", "), strings.Join(settings, ", "))
	fmt.Fprintf(w, `- The sides of a comparison take turns, %d rounds. Each turn starts from a copy of the same
  vacuumed and analyzed database, after a checkpoint. Numbers are medians, with the least and the
  most. Ratios are taken round by round.
- "Raw" is the limit: the bare SQL statements of the same work, prepared, without a library.

`, r.rounds)
}

// missed is the table of targets that are not reached.
func (r *report) missed(w *bytes.Buffer) {
	rows, passed := "", 0
	for _, v := range r.verdicts {
		if v.Outcome == outcomePass {
			passed++
			continue
		}
		rows += targetRow(v)
	}
	fmt.Fprintf(w, "## Targets\n\n`-check` has %d targets. %d were reached. The others:\n\n%s%s\n", len(r.verdicts), passed, targetsHead, rows)
	fmt.Fprint(w, "x is a ratio. A missed target counts as missed unless the raw limit of the same run misses it too.\n\n")
}

const targetsHead = "| Target | Bound | Measured | |\n|---|---|---|---|\n"

func targetRow(v verdict) string {
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
	return fmt.Sprintf("| %s | %s %s%s | %s | %s |\n", v.What, map[string]string{atLeast: "at least", atMost: "at most"}[v.Op], trimmed(v.Bound), unit, measured, outcome)
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
		fmt.Fprintf(w, "![%s](%s)\n\n", alt, name)
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
