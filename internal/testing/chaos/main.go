//go:build unix

// Chaos breaks the outbox on purpose and counts lost tasks.
//
//	go run ./internal/testing/chaos                        a minute of everything
//	go run ./internal/testing/chaos -faults kill,crash -for 5m -seed 7
//	go run ./internal/testing/chaos -mutation all          are seeded bugs noticed, by runs and by tests?
//	go run ./internal/testing/chaos -mutation tests        those only that tests of the default suite notice
//	go run ./internal/testing/chaos -mutation cursor,blind-slot
//
// A run is, in this order:
//
//	arena.go     a PostgreSQL cluster and a NATS server (servers.go), and processes of the app
//	             (package app), each in a seat that starts it again, behind a TCP proxy (package
//	             internal/testing/proxy): together the arena
//	faults.go    faults (faults_*.go) are injected by a schedule that the seed gives
//	run.go       faults are healed, relays work off the backlog and end; the report is printed
//	check.go     what producers were told is compared with what happened, by queries
//
// It exits with 1 if anything was lost, doubled or left behind; its files stay where it says then.
//
// A mutant (mutants.go) is a bug that is compiled into the library by go build
// -overlay, and what must notice it: a run of this program, or named tests, which pass without the
// bug. Each edit of a mutant names a text that is once in the library, or once in a function of the
// schema; a change of the text fails TestEachMutantAppliesToTheSources. mutate.go prints for each
// mutant what was wrong in the run, or the first test that failed. It exits with 1 if one survives.
//
// It is a module of its own, as the library's go.mod requires no broker.
//
// docs/reliability.md has the promises that are checked, and the results of longer runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/child"
)

func main() {
	child.Run(app.Run)
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program; its children notice
	do := runs
	if o.mutation != "" {
		do = mutate
	}
	passed, err := do(ctx, o)
	if err != nil {
		fatal(err)
	}
	if !passed {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "chaos:", err)
	os.Exit(2)
}

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
	f.StringVar(&o.driver, "driver", "pq", "pq, pgx, or pgxpool: one pool for the app and its relay")
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
	if !slices.Contains([]string{"pq", "pgx", "pgxpool"}, o.driver) {
		return o, fmt.Errorf("-driver is %q, want pq, pgx or pgxpool", o.driver)
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
