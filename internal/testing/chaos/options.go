//go:build unix

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// options are the command line.
type options struct {
	length    time.Duration
	tasks     int
	faults    []string
	seed      uint64
	driver    string
	every     time.Duration
	producers int
	mutation  string
	patience  time.Duration
	slices    int
	group     int
}

func parse(args []string, out io.Writer) (options, error) {
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(out)
	var o options
	var list string
	f.DurationVar(&o.length, "for", time.Minute, "how long faults are injected, and tasks enqueued")
	f.IntVar(&o.tasks, "tasks", 0, "about how many tasks are enqueued; faults go on; 0 is as many as there is time for")
	f.StringVar(&list, "faults", "all", "which faults, with commas: all, none, or of\n"+faultHelp())
	f.Uint64Var(&o.seed, "seed", rand.Uint64N(1_000_000), "gives the schedule of faults")
	f.StringVar(&o.driver, "driver", "pq", "pq or pgx")
	f.DurationVar(&o.every, "every", 300*time.Millisecond, "how far faults are apart, on average")
	f.IntVar(&o.producers, "producers", 2, "processes that enqueue tasks")
	f.StringVar(&o.mutation, "mutation", "",
		"compile bugs into the library and see whether they are noticed: all, runs, tests, or with commas of\n"+mutantHelp())
	f.DurationVar(&o.patience, "patience", 90*time.Second, "a run gives up if the backlog does not shrink for so long")
	f.IntVar(&o.slices, "slices", 1, "so many runs one after the other, with seeds that follow each other")
	f.IntVar(&o.group, "group", 0, "handlers.GroupCommit of the Tx handlers, in the tests of mutants too; 0: none")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q: there are flags only", f.Arg(0))
	}
	if o.driver != "pq" && o.driver != "pgx" {
		return o, fmt.Errorf("-driver is %q, want pq or pgx", o.driver)
	}
	if o.length < time.Second || o.every < 10*time.Millisecond || o.producers < 1 || o.tasks < 0 || o.slices < 1 {
		return o, errors.New("-for must be 1s at least, -every 10ms, -producers and -slices 1, -tasks 0")
	}
	var err error
	o.faults, err = chosenFaults(list)
	return o, err
}

func (o options) has(fault string) bool { return slices.Contains(o.faults, fault) }

// only reports whether no other fault is chosen.
func (o options) only(fault string) bool {
	return !slices.ContainsFunc(o.faults, func(f string) bool { return f != fault })
}

// String is the flags that matter.
func (o options) String() string {
	tasks := ""
	if o.tasks > 0 {
		tasks = fmt.Sprintf(" -tasks %d", o.tasks)
	}
	if o.group > 0 {
		tasks += fmt.Sprintf(" -group %d", o.group)
	}
	return fmt.Sprintf("-for %v%s -seed %d -driver %s -every %v -faults %s",
		o.length, tasks, o.seed, o.driver, o.every, strings.Join(o.faults, ","))
}
