package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lib/pq"
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
		runtime.Version(), r.env.modules, r.env.settings, r.rounds)
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

// versus is one comparison with River that the report shows, also where River is better.
type versus struct{ caseName, what, metric, ours, river string }

// lessIsBetter has the metrics of which this is true.
var lessIsBetter = []string{mCPU, mP50, mP99, mWAL}

var comparisons = []versus{
	{caseBurndown, "no-op: " + sideBatch, mRate, sideBatch, sideRiverBench},
	{caseBurndown, "no-op: " + sideBatch, mCPU, sideBatch, sideRiverBench},
	{caseBurndown, "no-op: " + sideLeased, mRate, sideLeased, sideRiverBench},
	{caseBurndown, "no-op: " + sideLeased, mCPU, sideLeased, sideRiverBench},
	{caseBurndown, "no-op: " + sideTx, mRate, sideTx, sideRiverBench},
	{caseBurndown, "no-op: " + sideTx, mCPU, sideTx, sideRiverBench},
	{caseInsert, "one insert: Tx, 10 workers", mRate, sideInsertTx10, sideInsertRiver10},
	{caseInsert, "one insert: Tx, 50 workers", mRate, sideInsertTx50, sideInsertRiver50},
	{caseInsert, "one insert: Tx, GroupCommit(8)", mRate, sideGroup8, sideInsertRiver10},
	{caseInsert, "one insert: Tx, GroupCommit(32)", mRate, sideGroup32, sideInsertRiver10},
	{caseInsert, "one insert: Complete", mRate, sideComplete, sideInsertRiver10},
	{caseInsert, "one insert: Batch", mRate, sideInsertBatch, sideInsertRiver50},
	{caseDefaults, "defaults: " + sideDefaultTx, mRate, sideDefaultTx, sideDefaultRiver},
	{caseDefaults, "defaults: " + sideDefaultBatch, mRate, sideDefaultBatch, sideDefaultRiver},
	{caseDefaults, "defaults: " + sideDefaultLeased, mRate, sideDefaultLeased, sideDefaultRiver},
	{caseDefaults, "defaults: " + sideDefaultTx100, mRate, sideDefaultTx100, sideDefaultRiver100},
	{caseDefaults, "defaults: " + sideDefaultBatch100, mRate, sideDefaultBatch100, sideDefaultRiver100},
	{caseDefaults, "defaults: " + sideDefaultLeased100, mRate, sideDefaultLeased100, sideDefaultRiver100},
	{caseLatency, "pickup across processes, both at defaults", mP50, sideAcross, sideRiverDefaults},
	{caseLatency, "pickup across processes, River at its benchmark's settings", mP50, sideAcross, sideRiverBench},
	{caseLatency, "pickup across processes, both at defaults", mP99, sideAcross, sideRiverDefaults},
	{caseLatency, "pickup across processes, River at its benchmark's settings", mP99, sideAcross, sideRiverBench},
	{caseEnqueue, "one task a transaction", mSpeed, sideEnqueue, sideRiverTx},
	{caseEnqueue, "one task a transaction, both on pgx", mSpeed, sideEnqueuePgx, sideRiverTx},
	{caseMany, "5,000 a call", mRate, sideMany, sideRiverFast},
	{caseWAL, sideWALBatch, mWAL, sideWALBatch, sideWALRiver},
	{caseWAL, sideWALTx, mWAL, sideWALTx, sideWALRiver},
	{caseWAL, sideWALLeased, mWAL, sideWALLeased, sideWALRiver},
}

func (r *report) besideRiver() string {
	rows := ""
	for _, v := range comparisons {
		ratio := measure.Ratio(r.samples.Rounds(v.caseName, v.ours, v.metric),
			r.samples.Rounds(v.caseName, v.river, v.metric))
		if ratio.N == 0 {
			continue
		}
		better := "ours"
		if (ratio.Median < 1) != slices.Contains(lessIsBetter, v.metric) {
			better = "River"
		}
		ours := r.samples.Of(v.caseName, v.ours, v.metric)
		river := r.samples.Of(v.caseName, v.river, v.metric)
		rows += fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n",
			v.what, v.metric, number(ours.Median), v.river, number(river.Median), cellWith(ratio, "x"), better)
	}
	if rows == "" {
		return ""
	}
	return "## Beside River\n\n| | | ours | River | | ours / River | better |\n|---|---|---|---|---|---|---|\n" + rows +
		"\n"
}

// printTable has a row for each side of a case: its name, and its medians.
func printTable(out io.Writer, samples *measure.Samples, caseName string) {
	w, metrics := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0), samples.Metrics(caseName)
	fmt.Fprintf(w, "  \t%s\n", strings.Join(metrics, "\t"))
	for _, side := range samples.Sides(caseName) {
		row := []string{side}
		for _, m := range metrics {
			row = append(row, cellWith(samples.Of(caseName, side, m), ""))
		}
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// cellWith is a median with the least and the most, and a unit after the median.
func cellWith(s measure.Summary, unit string) string {
	switch {
	case s.N == 0:
		return ""
	case s.N == 1 || s.Min == s.Max:
		return number(s.Median) + unit
	}
	return fmt.Sprintf("%s%s (%s to %s)", number(s.Median), unit, number(s.Min), number(s.Max))
}

// number writes three digits, and thousands with commas.
func number(v float64) string {
	switch {
	case v < 0:
		return "-" + number(-v)
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// environment is what the numbers depend on.
type environment struct {
	date, cpu, system, revision string
	cores                       int
	memoryGB                    float64
	modules, settings           string
}

// peers are the modules whose versions are shown.
var peers = []string{
	"github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/jackc/pgx/v5", "github.com/lib/pq",
	"github.com/riverqueue/river",
}

// shownSettings are printed as the server says them.
var shownSettings = []string{
	"server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size",
	"checkpoint_timeout", "max_connections", "autovacuum", "autovacuum_naptime", "wal_level", "jit",
}

const settingsSQL = `/* bench: settings */
SELECT string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY place)
  FROM unnest($1::text[]) WITH ORDINALITY AS s (name, place)`

func environmentOf(ctx context.Context, s *server) (environment, error) {
	kb, _ := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"), 64)
	e := environment{
		date: time.Now().UTC().Format("2006-01-02"), cpu: procField("/proc/cpuinfo", "model name"), cores: runtime.NumCPU(),
		system: runtime.GOOS + "/" + runtime.GOARCH, revision: revision(ctx), memoryGB: kb / 1e6,
	}
	var modules []string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(peers, m.Path) {
				modules = append(modules, m.Path+" "+m.Version)
			}
		}
	}
	e.modules = strings.Join(modules, ", ")
	return e, s.admin.QueryRowContext(ctx, settingsSQL, pq.Array(shownSettings)).Scan(&e.settings)
}

func (e environment) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d cores, %.0f GB, %s, %s, revision %s\n%s\n%s\n", e.cpu, e.cores, e.memoryGB, e.system,
		runtime.Version(), e.revision, e.modules, e.settings)
}

// procField is a line's value in a file of /proc; "" where there is none.
func procField(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// revision is that of the checkout, with + if it has changes; "unknown" without git.
func revision(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	r := strings.TrimSpace(string(head))
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "-uno", "..").Output()
	if err == nil && len(changes) > 0 {
		r += "+"
	}
	return r
}
