//go:build unix

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// report is a tally as it is printed.
type report struct {
	*tally
	options   string
	took      time.Duration
	workedOff time.Duration // from the last fault to the last task
	files     string
}

func (r *report) passed() bool { return len(r.wrong) == 0 }

// A line of the report with this prefix names a kind of violation.
const wrongPrefix = "WRONG: "

// most is how many examples of a violation are printed.
const most = 5

func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chaos %s\ntook %v, of which %v to work off what was left\n",
		r.options, r.took.Round(time.Millisecond), r.workedOff.Round(time.Millisecond))
	section := func(title string, of map[string]int) {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(of)) {
			all = append(all, fmt.Sprint(name, " ", of[name]))
		}
		fmt.Fprintf(&b, "%s: %s\n", title, strings.Join(all, ", "))
	}
	section("faults", r.done)
	section("counts", r.counts)
	for _, n := range r.noise {
		fmt.Fprintf(&b, "noise: %s\n", n)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.wrong)) {
		examples := r.wrong[kind]
		fmt.Fprintf(&b, "%s%s: %d: %s\n", wrongPrefix, kind, len(examples),
			strings.Join(examples[:min(most, len(examples))], "; "))
	}
	if r.passed() {
		b.WriteString("passed: 0 lost, 0 unexpected, 0 duplicated, 0 ghosts, 0 over their limit, 0 in two places, " +
			"0 counter drift, 0 leaks\n")
	} else {
		fmt.Fprintf(&b, "FAILED; the seed repeats the schedule of faults\nfiles: %s\n", r.files)
	}
	return b.String()
}
