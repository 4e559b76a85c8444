//go:build unix

package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// tally is what a run did and found. Its methods are safe for concurrent use.
type tally struct {
	began time.Time
	log   *os.File // of faults

	mu     sync.Mutex
	done   map[string]int // faults
	failed map[string]int // faults that could not be injected
	counts map[string]int
	noise  []string // what the harness itself could not do
	wrong  map[string][]string
}

func newTally(log *os.File) *tally {
	return &tally{began: time.Now(), log: log,
		done: map[string]int{}, failed: map[string]int{}, counts: map[string]int{}, wrong: map[string][]string{}}
}

// happened counts a fault and writes it to the log, unless there was nothing to break.
func (t *tally) happened(fault, what string, err error) {
	if what == "" && err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed[fault]++
		t.noise = append(t.noise, fmt.Sprintf("%s: %v", fault, err))
		what = "failed: " + err.Error()
	} else {
		t.done[fault]++
	}
	_, _ = fmt.Fprintf(t.log, "%v %s: %s\n", time.Since(t.began).Round(time.Millisecond), fault, what)
}

// count adds n and returns the sum.
func (t *tally) count(name string, n int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name] += n
	return t.counts[name]
}

func (t *tally) complain(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noise = append(t.noise, fmt.Sprintf(format, args...))
}

// violate records examples of something that must not happen.
func (t *tally) violate(kind string, examples ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(examples) > 0 {
		t.wrong[kind] = append(t.wrong[kind], examples...)
	}
}
