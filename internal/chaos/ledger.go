//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// entry is a line of a producer's ledger: what it is about to commit, or what became of that.
type entry struct {
	N       int      `json:"n"`               // of the transaction
	Outcome string   `json:"o"`               // intent, acked, rolled_back or unknown
	Tasks   []string `json:"tasks,omitempty"` // of an intent: kind, colon, k
}

// ledger is a file to which a producer appends, synced for each intent.
type ledger struct{ f *os.File }

func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &ledger{f}, err
}

func (l *ledger) add(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := l.f.Write(append(line, '\n')); err != nil {
		return err
	}
	if e.Outcome != "intent" {
		return nil
	}
	return l.f.Sync()
}

// told is what a producer knows of a task.
type told struct{ k, kind, outcome string }

// readLedger returns what became of each task; an intent without an outcome is unknown, as the producer was gone.
func readLedger(path string) ([]told, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tasks, outcomes := map[int][]string{}, map[int]string{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if e.Outcome == "intent" {
			tasks[e.N] = e.Tasks
		} else {
			outcomes[e.N] = e.Outcome
		}
	}
	var all []told
	for n, of := range tasks {
		outcome := outcomes[n]
		if outcome == "" {
			outcome = "unknown"
		}
		for _, task := range of {
			kind, k, _ := strings.Cut(task, ":")
			all = append(all, told{k, kind, outcome})
		}
	}
	return all, lines.Err()
}
