package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// report is what a run measured.
type report struct {
	command  string
	quick    bool
	rounds   int
	took     time.Duration
	env      environment
	samples  *measure.Samples
	verdicts []verdict
}

// missed reports whether a target is missed.
func (r *report) missed() bool {
	return slices.ContainsFunc(r.verdicts, func(v verdict) bool { return v.Outcome == outcomeFail })
}

// write writes benchmarks.md.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(r.summary()), 0o644)
}

// summary is docs/benchmarks.md.
func (r *report) summary() string {
	return `# Benchmarks

The program in [bench](../bench) measures and writes this page. All numbers are of one run.
` + "`cd bench && go run . -quick`" + ` measures yours, and prints the table of each case.

` + r.conditions() + r.reached() + r.besideRiver()
}

func (r *report) conditions() string {
	size := ""
	if r.quick {
		size = " A quick run: smaller backlogs and shorter turns."
	}
	return fmt.Sprintf(`## Conditions

`+"`%s`"+` on %s, revision %s, %.0f minutes.%s

- %s, %d cores, %.0f GB, %s. Client and server share the cores, over loopback.
  Ratios carry over to other machines better than rates.
- %s; %s. Ours and the bare statements run on lib/pq, River on pgx.
- PostgreSQL: %s.
- The sides of a comparison take turns, %d rounds. Each turn starts from a copy of the same
  vacuumed and analyzed database, after a checkpoint. Numbers are medians, with the least and the
  most. Ratios are taken round by round.
- "Raw" is the limit: the bare SQL statements of the same work, prepared, without a library.

`, r.command, r.env.date, r.env.revision, r.took.Minutes(), size, r.env.cpu, r.env.cores, r.env.memoryGB, r.env.system,
		runtime.Version(), joined(r.env.modules, " "), joined(r.env.settings, " = "), r.rounds)
}

// reached is the number of targets that are reached, and a table of the others.
func (r *report) reached() string {
	rows, passed := "", 0
	for _, v := range r.verdicts {
		if v.Outcome == outcomePass {
			passed++
		} else {
			rows += targetRow(v)
		}
	}
	return fmt.Sprintf("## Targets\n\n`-check` has %d targets. %d were reached. The others:\n\n%s%s\n"+
		"x is a ratio. A missed target counts as missed unless the raw limit of the same run misses it too.\n\n",
		len(r.verdicts), passed, targetsHead, rows)
}

const targetsHead = "| Target | Bound | Measured | |\n|---|---|---|---|\n"

func targetRow(v verdict) string {
	measured, outcome := "", v.Outcome
	if v.Got.N > 0 {
		measured = cellWith(v.Got, v.unit())
	}
	if v.Outcome == outcomeExcused {
		outcome = fmt.Sprintf("below, as is the raw limit: %s%s", number(v.RawGot), v.unit())
	}
	bound := map[string]string{atLeast: "at least", atMost: "at most"}[v.Op]
	return fmt.Sprintf("| %s | %s %s%s | %s | %s |\n", v.What, bound, trimmed(v.Bound), v.unit(), measured, outcome)
}

func (r *report) besideRiver() string {
	rows := ""
	for _, v := range comparisons() {
		ratio := measure.Ratio(r.samples.Rounds(v.Case, v.Ours, v.Metric), r.samples.Rounds(v.Case, v.River, v.Metric))
		if ratio.N == 0 {
			continue
		}
		better := "ours"
		if (ratio.Median < 1) != v.Less {
			better = "River"
		}
		ours, river := r.samples.Of(v.Case, v.Ours, v.Metric), r.samples.Of(v.Case, v.River, v.Metric)
		rows += fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n",
			v.What, v.Metric, number(ours.Median), v.River, number(river.Median), cellWith(ratio, "x"), better)
	}
	if rows == "" {
		return ""
	}
	return "## Beside River\n\n| | | ours | River | | ours / River | better |\n|---|---|---|---|---|---|---|\n" + rows +
		"\n"
}
