//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	For       time.Duration
	Tasks     int
	Faults    []string
	Seed      uint64
	Driver    string
	JSON      bool
	Every     time.Duration
	Relays    int
	Producers int
	Mutation  string
	Keep      bool
	Verbose   bool
	Patience  time.Duration
	Slices    int
}

func main() {
	if role := os.Getenv(childEnv); role != "" {
		fmt.Fprintln(os.Stderr, child(role))
		os.Exit(2)
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program; what it started notices
	if o.Mutation != "" {
		os.Exit(mutate(ctx, o))
	}
	r, err := runs(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		if r != nil {
			fmt.Fprint(os.Stderr, "so far: ", r)
		}
		os.Exit(2)
	}
	if o.JSON {
		out, _ := json.MarshalIndent(r, "", "  ")
		fmt.Println(string(out))
	} else {
		fmt.Print(r)
	}
	if !r.passed() {
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(out)
	var o options
	var list string
	f.DurationVar(&o.For, "for", time.Minute, "how long faults are injected, and tasks enqueued")
	f.IntVar(&o.Tasks, "tasks", 0, "about how many tasks are enqueued; faults go on; 0 is as many as there is time for")
	f.StringVar(&list, "faults", "all", "which faults, with commas: all, none, or of\n"+faultHelp())
	f.Uint64Var(&o.Seed, "seed", rand.Uint64N(1_000_000), "what the schedule of faults comes from; the same seed gives the same schedule")
	f.StringVar(&o.Driver, "driver", "pq", "pq or pgx")
	f.BoolVar(&o.JSON, "json", false, "print the result as JSON")
	f.DurationVar(&o.Every, "every", 300*time.Millisecond, "how far faults are apart, on average")
	f.IntVar(&o.Relays, "relays", 4, "processes that run tasks")
	f.IntVar(&o.Producers, "producers", 2, "processes that enqueue tasks")
	f.StringVar(&o.Mutation, "mutation", "", "seed bugs into the library and see whether they are noticed: all, runs, tests, or with commas of\n"+mutantHelp())
	f.BoolVar(&o.Keep, "keep", false, "keep the files of a run that passes, too")
	f.BoolVar(&o.Verbose, "v", false, "print each fault")
	f.DurationVar(&o.Patience, "patience", 90*time.Second, "for how long nothing may become less of what is left at the end")
	f.IntVar(&o.Slices, "slices", 1, "so many runs one after the other, with seeds that follow each other, and their sum")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("what is %q? There are flags only", f.Arg(0))
	}
	if o.Driver != "pq" && o.Driver != "pgx" {
		return o, fmt.Errorf("-driver is %q, want pq or pgx", o.Driver)
	}
	if o.For < time.Second || o.Every < 10*time.Millisecond || o.Relays < 1 || o.Producers < 1 || o.Tasks < 0 || o.Slices < 1 {
		return o, errors.New("-for must be 1s at least, -every 10ms, -relays, -producers and -slices 1, -tasks 0")
	}
	var err error
	o.Faults, err = chosen(list)
	return o, err
}

func (o options) has(fault string) bool {
	for _, f := range o.Faults {
		if f == fault {
			return true
		}
	}
	return false
}

// String is the flags that matter.
func (o options) String() string {
	tasks := ""
	if o.Tasks > 0 {
		tasks = fmt.Sprintf(" -tasks %d", o.Tasks)
	}
	if o.Slices > 1 {
		tasks += fmt.Sprintf(" -slices %d", o.Slices)
	}
	return fmt.Sprintf("-for %v%s -seed %d -driver %s -every %v -faults %s", o.For, tasks, o.Seed, o.Driver, o.Every, strings.Join(o.Faults, ","))
}
