package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// run runs the cases, and reports whether a target was missed.
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
		printTable(out, b.samples, c)
	}
	verdicts := judge(b.samples, targets(p))
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
