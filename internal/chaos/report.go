//go:build unix

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// report is what a run did and found.
type report struct {
	Options    string              `json:"options"`
	Seed       uint64              `json:"seed"`
	Took       time.Duration       `json:"took_ns"`
	WorkedOff  time.Duration       `json:"worked_off_ns"` // from the last fault to the last task
	Faults     map[string]int      `json:"faults"`
	Counts     map[string]int      `json:"counts"`
	Violations map[string][]string `json:"violations"`
	Noise      []string            `json:"noise"` // what the harness could not do
	Files      string              `json:"files,omitempty"`
}

func (a *arena) report() *report {
	r := &report{Options: a.options.String(), Seed: a.Seed, Faults: map[string]int{}, Counts: map[string]int{}, Violations: a.wrong, Noise: a.noise}
	for name, n := range a.counts {
		if faultNamed(name) != nil {
			r.Faults[name] = n
		} else {
			r.Counts[name] = n
		}
	}
	for name, query := range map[string]string{
		"effects":                       `SELECT count(*) FROM effect`,
		"effects of later attempts":     `SELECT count(*) FROM effect WHERE attempt > 1 + fail`,
		mostAttempts:                    `SELECT coalesce(max(attempt), 0) FROM effect`,
		"dead letters":                  `SELECT count(*) FROM outbox.dead_task`,
		"unknown commits, of which had": `SELECT count(*) FROM ledger JOIN business USING (k) WHERE outcome = 'unknown'`,
	} {
		n, err := a.number(query)
		if err != nil {
			a.complain("%s: %v", name, err)
		}
		r.Counts[name] = n
	}
	for _, s := range a.relays {
		r.Counts["starts of relays"] += s.starts
	}
	return r
}

// add sums up runs.
func (r *report) add(other *report) {
	for name, n := range other.Faults {
		r.Faults[name] += n
	}
	for name, n := range other.Counts {
		if name == mostAttempts {
			r.Counts[name] = max(r.Counts[name], n)
		} else {
			r.Counts[name] += n
		}
	}
	for kind, examples := range other.Violations {
		r.Violations[kind] = append(r.Violations[kind], examples...)
	}
	r.Noise = append(r.Noise, other.Noise...)
	r.Took += other.Took
	r.WorkedOff += other.WorkedOff
}

const mostAttempts = "most attempts of a task"

func (r *report) passed() bool { return len(r.Violations) == 0 }

// most is how many examples of a violation are printed.
const most = 5

func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chaos %s\ntook %v, of which %v to work off what was left\n", r.Options, r.Took, r.WorkedOff)
	section := func(title string, of map[string]int) {
		fmt.Fprintf(&b, "%s:", title)
		for i, name := range slices.Sorted(maps.Keys(of)) {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " %s %d", name, of[name])
		}
		b.WriteString("\n")
	}
	section("faults", r.Faults)
	section("counts", r.Counts)
	for _, n := range r.Noise {
		fmt.Fprintf(&b, "noise: %s\n", n)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Violations)) {
		examples := r.Violations[kind]
		fmt.Fprintf(&b, "WRONG: %s: %d: %s\n", kind, len(examples), strings.Join(examples[:min(most, len(examples))], "; "))
	}
	if r.passed() {
		b.WriteString("passed: 0 lost, 0 unexpected, 0 duplicated, 0 ghosts, 0 over their limit, 0 in two places, 0 counter drift, 0 leaks\n")
	} else {
		b.WriteString("FAILED; the seed repeats the schedule of faults\n")
	}
	if r.Files != "" {
		fmt.Fprintf(&b, "files: %s\n", r.Files)
	}
	return b.String()
}
