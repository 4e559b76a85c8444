package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// bench is one invocation.
type bench struct {
	opts    options
	plan    plan
	server  *server
	samples *measure.Samples
	out     io.Writer // what a person reads
	started time.Time
}

// benchCase is one case: what it does, and what its numbers say and do not say, for the report.
type benchCase struct {
	name, title string
	budget      int // seconds of a quick run on two cores that nobody else uses
	run         func(ctx context.Context, b *bench) error
	says        string
	metrics     []string // of the report's table; the first one is compared with ours
	chart       string   // the metric of the bar chart; "" for none
	lines       string   // the prefix of the metrics of a line chart; "" for none
}

func caseNames() []string {
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return names
}

// run runs the cases, and reports whether a target was missed.
func run(ctx context.Context, o options, p plan, stdout, stderr io.Writer) (missed bool, err error) {
	b := &bench{opts: o, plan: p, samples: &measure.Samples{}, out: stdout, started: time.Now()}
	if o.json {
		b.out = stderr
	}
	b.server, err = openServer(ctx, o.databaseURL, func(format string, args ...any) { b.say(format, args...) })
	if err != nil {
		return false, err
	}
	defer b.server.close()
	env, err := environmentOf(ctx, b)
	if err != nil {
		return false, err
	}
	env.print(b.out)
	for _, c := range cases() {
		if len(o.cases) > 0 && !slices.Contains(o.cases, c.name) {
			continue
		}
		began := time.Now()
		b.say("%s: %s", c.name, c.title)
		if err := c.run(ctx, b); err != nil {
			return false, fmt.Errorf("%s: %w", c.name, err)
		}
		if took := time.Since(began).Seconds(); o.quick {
			b.say("  took %.0f s of %d", took, c.budget)
		} else {
			b.say("  took %.0f s", took)
		}
		b.printTable(c)
	}
	verdicts := judge(b.samples, targets(b.plan))
	if len(o.cases) == 0 && len(o.peers) == allPeers {
		requireAll(verdicts)
	}
	printVerdicts(b.out, verdicts)
	b.say("all took %.0f s", time.Since(b.started).Seconds())
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", " ")
		if err := e.Encode(map[string]any{"environment": env, "samples": b.samples.All(), "targets": verdicts}); err != nil {
			return false, err
		}
	}
	if o.report != "" {
		if err := b.writeReport(o.report, env, verdicts); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(verdicts, func(v verdict) bool { return v.Outcome == outcomeFail }), nil
}

func (b *bench) elapsed() float64 { return time.Since(b.started).Seconds() }

// say prints a line with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "[%4.0f s] "+format+"\n", append([]any{b.elapsed()}, args...)...)
}
