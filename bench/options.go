package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

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
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errout)
	f.BoolVar(&o.quick, "quick", false, "smaller and shorter: within 8 minutes on two cores")
	f.BoolVar(&o.check, "check", false, "exit with 1 if a target is missed, and name it")
	f.StringVar(&chosen, "case", "", "only these `cases`, separated by commas: "+strings.Join(caseNames(), ", "))
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
			return o, fmt.Errorf("bench: -case: there is no %q, but %s", c, strings.Join(caseNames(), ", "))
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
