//go:build unix

package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The outcomes of a transaction.
const (
	Acked      = "acked"
	RolledBack = "rolled_back"
	Unknown    = "unknown"
	intended   = "intent"
)

// record appends a line to a file of a run, which outlives processes and servers.
func record(dir, file string, sync bool, fields ...any) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, fields...); err != nil || !sync {
		return err
	}
	return f.Sync()
}

// recorded are the lines of a file, as fields, of which each has some at least. There may be no file.
func recorded(path string, some int) (lines [][]string, err error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < some {
			return nil, fmt.Errorf("%s: a line is not whole: %q", path, line)
		}
		lines = append(lines, fields)
	}
	return lines, nil
}

// Intend records, on disk, the tasks that transaction n of a producer is about to enqueue: each as its
// type, a colon and K.
func Intend(dir, producer string, n int, tasks ...string) error {
	return record(dir, producer+".ledger", true, n, intended, strings.Join(tasks, " "))
}

// End records the outcome of transaction n.
func End(dir, producer string, n int, outcome string) error {
	return record(dir, producer+".ledger", false, n, outcome)
}

// Told is what a producer knows of a task.
type Told struct{ K, Kind, Outcome string }

// ReadLedgers returns the outcome of each task. An intent without an outcome is unknown: its producer
// was killed.
func ReadLedgers(dir string) (all []Told, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.ledger"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		lines, err := recorded(path, 2)
		if err != nil {
			return nil, err
		}
		outcomes := map[string]string{}
		for _, line := range slices.Backward(lines) { // the outcome before its intent
			n, what := line[0], line[1]
			if what != intended {
				outcomes[n] = what
				continue
			}
			outcome := outcomes[n]
			if outcome == "" {
				outcome = Unknown
			}
			for _, task := range line[2:] {
				kind, k, _ := strings.Cut(task, ":")
				all = append(all, Told{k, kind, outcome})
			}
		}
	}
	return all, nil
}

const (
	callsFile  = "calls"
	startsFile = "starts"
)

// ReadCalls returns how often the outside world was called with each K.
func ReadCalls(dir string) (map[string]int, error) {
	lines, err := recorded(filepath.Join(dir, callsFile), 1)
	calls := map[string]int{}
	for _, line := range lines {
		calls[line[0]]++
	}
	return calls, err
}

// Poisoned is a poison task and its starts in all relays.
type Poisoned struct {
	How    string
	Starts []time.Time
}

// ReadStarts returns the poison tasks that were started, by K.
func ReadStarts(dir string) (map[string]*Poisoned, error) {
	lines, err := recorded(filepath.Join(dir, startsFile), 3)
	all := map[string]*Poisoned{}
	for _, line := range lines {
		k, how := line[0], line[1]
		at, err := strconv.ParseInt(line[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the file of starts: %w", err)
		}
		if all[k] == nil {
			all[k] = &Poisoned{How: how}
		}
		all[k].Starts = append(all[k].Starts, time.Unix(0, at))
	}
	return all, err
}
