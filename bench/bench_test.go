package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(child(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// tiny is a plan whose numbers mean nothing.
func tiny() plan {
	return plan{
		rounds: 1, backlog: 2000, large: 20_000, huge: 20_000, burn: 200 * time.Millisecond, short: 100 * time.Millisecond, insert: 200 * time.Millisecond, long: time.Second,
		enqueue: 100 * time.Millisecond, many: 5000, held: 200 * time.Millisecond, heldWindow: 100 * time.Millisecond, pickups: 1, gap: time.Millisecond, pollers: 2, polls: 1,
		claims: 30, idle: 100 * time.Millisecond, mixed: 100 * time.Millisecond, mixedTasks: 2000, walTasks: 500, infoRounds: 1, extras: true, payload: 2, settle: 300 * time.Millisecond,
	}
}

// A case runs to its end on a real server, measures what its targets ask for, and is in the report. With
// OUTBOX_TEST_LONG=1 it is every case, else one of each sort: rates, transactions, times, bytes.
func TestEveryCaseMeasuresWhatItsTargetsName(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	o := options{quick: true, json: true, peers: []string{peerRiver, peerRaw, peerWatermill}, rounds: 1, report: dir}
	if os.Getenv("OUTBOX_TEST_LONG") == "" {
		o.cases = []string{"burndown", "enqueue", "latency", "wal"}
	}
	runs := func(name string) bool { return o.cases == nil || slices.Contains(o.cases, name) }
	if _, err := run(t.Context(), o, tiny(), &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var got struct {
		Samples []struct{ Case string }
		Targets []verdict
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, v := range got.Targets {
		if v.Got.N == 0 && runs(v.Case) {
			t.Errorf("%s: %s: not measured", v.Case, v.What)
		}
	}
	measured := map[string]bool{}
	for _, s := range got.Samples {
		measured[s.Case] = true
	}
	for _, name := range caseNames() {
		if !measured[name] && runs(name) {
			t.Errorf("%s has no samples", name)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	details, err := os.ReadFile(filepath.Join(dir, "benchmarks", "details.md"))
	if err != nil {
		t.Fatal(err)
	}
	charts := regexp.MustCompile(`\]\(([^)]+\.svg)\)`).FindAllStringSubmatch(string(details), -1)
	if len(charts) == 0 {
		t.Error("the report has no charts")
	}
	for _, m := range charts {
		if _, err := os.Stat(filepath.Join(dir, "benchmarks", m[1])); err != nil {
			t.Error(err)
		}
	}
	for _, v := range comparisons() {
		if runs(v.Case) && !strings.Contains(string(text), fmt.Sprintf("| %s | %s |", v.What, v.Metric)) {
			t.Errorf("the report does not compare %s, %s, with River", v.What, v.Metric)
		}
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-case", "nothing"}, {"-peers", "nobody"}, {"-rounds", "0"}, {"word"}} {
		if _, err := parseOptions(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
	o, err := parseOptions([]string{"-quick", "-check", "-case", "wal,idle", "-peers", "raw"}, &bytes.Buffer{})
	if err != nil || !o.quick || !o.check || len(o.cases) != 2 || len(o.peers) != 1 {
		t.Errorf("options %+v, %v", o, err)
	}
}

func TestPasswordsAndPathsAreNotShown(t *testing.T) {
	got := strings.Join(shownArguments([]string{"-quick", "-database-url", "postgres://u:secret@h/d", "--database-url=postgres://u:secret@h/d", "-report", "/a/b", "-o=/a/b", "-check"}), " ")
	if want := "-quick -database-url … -database-url … -check"; got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}
}

func TestAQuickRunHasEightMinutes(t *testing.T) {
	sum := 0
	for _, c := range cases() {
		if c.budget <= 0 {
			t.Errorf("%s has no budget", c.name)
		}
		sum += c.budget
	}
	if sum > 8*60 {
		t.Errorf("the cases have %d s together", sum)
	}
}
