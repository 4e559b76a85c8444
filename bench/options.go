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
	quick, check, json bool
	cases, peers       []string
	databaseURL        string
	rounds             int
	report             string
}

// The sides that ours is compared with.
const (
	peerRiver     = "river"
	peerRaw       = "raw"
	peerWatermill = "watermill"
	allPeers      = 3
)

func parseOptions(args []string, errout io.Writer) (options, error) {
	var o options
	var cases, peers string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errout)
	f.BoolVar(&o.quick, "quick", false, "smaller and shorter: within 8 minutes on two cores")
	f.BoolVar(&o.check, "check", false, "exit with 1 if a target is missed, and name it")
	f.BoolVar(&o.json, "json", false, "print all samples as JSON on standard output, the rest on standard error")
	f.StringVar(&cases, "case", "", "only these `cases`, separated by commas: "+strings.Join(caseNames(), ", "))
	f.StringVar(&peers, "peers", "river,raw,watermill", "whom to compare with")
	f.StringVar(&o.databaseURL, "database-url", "", "the `URL` of a server to use instead of one of its own; its role must be a superuser")
	f.IntVar(&o.rounds, "rounds", 3, "turns of each side of what is compared")
	f.StringVar(&o.report, "report", "", "write benchmarks.md and its charts into this `directory`")
	f.StringVar(&o.report, "o", "", "the same as -report")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("bench: what is %q?", f.Arg(0))
	}
	o.cases, o.peers = list(cases), list(peers)
	var errs []error
	for _, c := range o.cases {
		if !slices.Contains(caseNames(), c) {
			errs = append(errs, fmt.Errorf("bench: -case: there is no %q, but %s", c, strings.Join(caseNames(), ", ")))
		}
	}
	for _, p := range o.peers {
		if !slices.Contains([]string{peerRiver, peerRaw, peerWatermill}, p) {
			errs = append(errs, fmt.Errorf("bench: -peers: there is no %q, but river, raw and watermill", p))
		}
	}
	if o.rounds < 1 {
		errs = append(errs, errors.New("bench: -rounds must be positive"))
	}
	return o, errors.Join(errs...)
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
