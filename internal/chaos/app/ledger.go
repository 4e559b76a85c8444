//go:build unix

package app

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// The outcomes of a transaction.
const (
	Acked      = "acked"
	RolledBack = "rolled_back"
	Unknown    = "unknown"
)

// entry is a line of a ledger: what a producer is about to commit, or the outcome.
type entry struct {
	N       int      `json:"n"`               // of the transaction
	Outcome string   `json:"o,omitempty"`     // empty for an intent
	Tasks   []string `json:"tasks,omitempty"` // of an intent: kind, colon, k
}

// Ledger is a file of transactions.
type Ledger struct{ file *os.File }

// OpenLedger opens a file to append to.
func OpenLedger(path string) (*Ledger, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &Ledger{file}, err
}

// Close closes the file.
func (l *Ledger) Close() { _ = l.file.Close() }

// Intend records, on disk, the tasks that transaction n is about to enqueue.
func (l *Ledger) Intend(n int, tasks ...string) error {
	if err := l.add(entry{N: n, Tasks: tasks}); err != nil {
		return err
	}
	return l.file.Sync()
}

// End records the outcome of transaction n.
func (l *Ledger) End(n int, outcome string) error { return l.add(entry{N: n, Outcome: outcome}) }

func (l *Ledger) add(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = l.file.Write(append(line, '\n'))
	return err
}

// Told is what a producer knows of a task.
type Told struct{ K, Kind, Outcome string }

// ReadLedger returns the outcome of each task. An intent without an outcome is unknown: its
// producer was killed.
func ReadLedger(path string) ([]Told, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	tasks, outcomes := map[int][]string{}, map[int]string{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if e.Outcome == "" {
			tasks[e.N] = e.Tasks
		} else {
			outcomes[e.N] = e.Outcome
		}
	}
	var all []Told
	for n, of := range tasks {
		outcome := outcomes[n]
		if outcome == "" {
			outcome = Unknown
		}
		for _, task := range of {
			kind, k, _ := strings.Cut(task, ":")
			all = append(all, Told{k, kind, outcome})
		}
	}
	return all, lines.Err()
}
