// Command bench compares the outbox with its peers and with the limit of bare SQL: go run . -h
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

func main() {
	runIfChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	r, err := run(ctx, o, planOf(o.quick, o.rounds), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if o.check && r.missed() {
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	quick, check bool
	cases        []string // empty is all
	rounds       int
	report       string
}

func parseOptions(args []string, errout io.Writer) (options, error) {
	var o options
	var chosen string
	all := strings.Join(caseNames(), ", ")
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errout)
	f.BoolVar(&o.quick, "quick", false, "smaller and shorter: within 8 minutes on two cores")
	f.BoolVar(&o.check, "check", false, "exit with 1 if a target is missed, and name it")
	f.StringVar(&chosen, "case", "", "only these `cases`, separated by commas: "+all)
	f.IntVar(&o.rounds, "rounds", 3, "turns of each side of what is compared")
	f.StringVar(&o.report, "report", "", "write benchmarks.md into this `directory`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("bench: unknown argument %q", f.Arg(0))
	}
	if o.rounds < 1 {
		return o, errors.New("bench: -rounds must be positive")
	}
	o.cases = strings.FieldsFunc(chosen, func(r rune) bool { return r == ',' || r == ' ' })
	for _, c := range o.cases {
		if !slices.Contains(caseNames(), c) {
			return o, fmt.Errorf("bench: -case: there is no %q, but %s", c, all)
		}
	}
	return o, nil
}

// String is the command, without where the report goes.
func (o options) String() string {
	s := "go run ."
	if o.quick {
		s += " -quick"
	}
	if o.check {
		s += " -check"
	}
	if len(o.cases) > 0 {
		s += " -case " + strings.Join(o.cases, ",")
	}
	return s
}

// plan is how much a run does. A turn ends when nothing is left, or after its limit. So a quick run
// takes about as long on any machine.
type plan struct {
	rounds  int
	backlog int
	large   int           // backlog of the case burndown-large
	burn    time.Duration // limit of a turn of burndown
	short   time.Duration // limit of a turn of cases that have many
	insert  time.Duration // limit of a turn of insert, whose first second goes into planning of many sessions
	long    time.Duration // limit of a turn of burndown-large

	enqueue    time.Duration // of a turn of single enqueues
	many       int           // tasks of a turn of bulk enqueues
	held       time.Duration
	heldWindow time.Duration
	dead       time.Duration // of enqueues, in a turn
	pickups    int
	keyed      int           // backlog of a key
	gap        time.Duration // between two pickups, at most
	pollers    int           // databases with a relay that polls, side by side
	polls      int           // pickups by each of them
	idle       time.Duration
	walTasks   int           // in bulk; a fifth of it one by one
	settle     time.Duration // until a relay sleeps at its full poll interval
}

func planOf(quick bool, rounds int) plan {
	p := plan{
		rounds: rounds, backlog: 200_000, large: 1_000_000,
		burn: 2 * time.Second, short: time.Second, insert: 2200 * time.Millisecond, long: 15 * time.Second,
		enqueue: 1600 * time.Millisecond, many: 50_000, held: 20 * time.Second,
		heldWindow: 5 * time.Second, dead: 9 * time.Second,
		pickups: 90, keyed: 100_000, gap: 100 * time.Millisecond, pollers: 16, polls: 7,
		idle: 8 * time.Second, walTasks: 10_000, settle: 3 * time.Second,
	}
	if quick {
		return p
	}
	p.burn, p.short, p.insert, p.long = 20*time.Second, 8*time.Second, 8*time.Second, 120*time.Second
	p.enqueue, p.many, p.held, p.heldWindow = 5*time.Second, 250_000, 3*time.Minute, 30*time.Second
	p.dead = 20 * time.Second
	p.pickups, p.gap, p.polls = 600, 400*time.Millisecond, 15
	p.idle, p.walTasks = time.Minute, 50_000
	return p
}

// bench is what the cases of one run share.
type bench struct {
	plan    plan
	server  *server
	samples *measure.Samples
	out     io.Writer
	started time.Time
}

// run runs the cases, and holds what they measured against the targets.
func run(ctx context.Context, o options, p plan, out io.Writer) (*report, error) {
	b := &bench{plan: p, samples: &measure.Samples{}, out: out, started: time.Now()}
	var err error
	if b.server, err = openServer(ctx, b.say); err != nil {
		return nil, err
	}
	defer b.server.close()
	env, err := environmentOf(ctx, b.server)
	if err != nil {
		return nil, err
	}
	env.print(out)
	for _, c := range cases {
		if len(o.cases) > 0 && !slices.Contains(o.cases, c.name) {
			continue
		}
		began := time.Now()
		b.say("%s: %s", c.name, c.title)
		if err := c.measure(ctx, b); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		b.say("  took %.0f s", time.Since(began).Seconds())
		printTable(out, b.samples, c.name)
	}
	verdicts := judge(b.samples, targets())
	if len(o.cases) == 0 {
		requireAll(verdicts)
	}
	printVerdicts(out, verdicts)
	took := time.Since(b.started)
	b.say("all took %.0f s", took.Seconds())
	r := &report{command: o.String(), quick: o.quick, rounds: p.rounds, took: took,
		env: env, samples: b.samples, verdicts: verdicts}
	if o.report != "" {
		err = r.write(o.report)
	}
	return r, err
}

// say prints a line with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "[%4.0f s] "+format+"\n", append([]any{time.Since(b.started).Seconds()}, args...)...)
}
