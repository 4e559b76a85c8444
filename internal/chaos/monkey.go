//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// fault is one way to break something.
type fault struct {
	name   string
	weight int
	help   string
	// do breaks it and returns what it did, or "" if there was nothing to break. What it decides comes from r.
	do func(a *arena, r *rand.Rand) (string, error)
}

// asked are the faults that must be asked for: they need more than PostgreSQL's binaries.
var asked = []string{"disk", "clock"}

func faultHelp() string {
	var b strings.Builder
	for _, f := range faults() {
		fmt.Fprintf(&b, "%s (%s)\n", f.name, f.help)
	}
	return b.String() + "all is each but " + strings.Join(asked, " and ")
}

func faultNamed(name string) *fault {
	for _, f := range faults() {
		if f.name == name {
			return &f
		}
	}
	return nil
}

func chosen(list string) ([]string, error) {
	switch list {
	case "none":
		return nil, nil
	case "all":
		var all []string
		for _, f := range faults() {
			if !slices.Contains(asked, f.name) {
				all = append(all, f.name)
			}
		}
		return all, nil
	}
	names := strings.Split(list, ",")
	if slices.Contains(names, "all") {
		all, err := chosen("all")
		rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "all" || slices.Contains(all, n) })
		if err != nil || len(rest) == 0 {
			return all, err
		}
		more, err := chosen(strings.Join(rest, ","))
		return append(all, more...), err
	}
	for _, name := range names {
		if faultNamed(name) == nil {
			return nil, fmt.Errorf("-faults: there is no %q; there are\n%s", name, faultHelp())
		}
	}
	return names, nil
}

// due is a fault of the schedule.
type due struct {
	at   time.Duration
	name string
	seed uint64 // of what it decides
}

// schedule is the same for the same seed, faults, length and distance.
func schedule(o options) []due {
	r := rand.New(rand.NewPCG(o.Seed, 0))
	total := 0
	for _, name := range o.Faults {
		total += faultNamed(name).weight
	}
	var all []due
	if total == 0 {
		return nil
	}
	for at := time.Second; at < o.For; at += o.Every/2 + time.Duration(r.Int64N(int64(o.Every))) {
		n := r.IntN(total)
		for _, name := range o.Faults {
			if n -= faultNamed(name).weight; n < 0 {
				all = append(all, due{at, name, r.Uint64()})
				break
			}
		}
	}
	return all
}

// torment does what the schedule says, one after the other; one that takes its time delays the next.
func (a *arena) torment(ctx context.Context) {
	a.began = time.Now()
	for _, d := range schedule(a.options) {
		wait(ctx, max(time.Until(a.began.Add(d.at)), a.Every/5))
		if ctx.Err() != nil || time.Since(a.began) > a.For {
			return
		}
		what, err := faultNamed(d.name).do(a, rand.New(rand.NewPCG(d.seed, 0)))
		a.happened(d.name, what, err)
	}
	wait(ctx, time.Until(a.began.Add(a.For)))
}

// aside does something that takes its time beside the schedule. It is the fault if it returns what it did.
func (a *arena) aside(fault string, do func() (string, error)) {
	a.asides.Go(func() {
		what, err := do()
		a.happened(fault, what, err)
	})
}

// happened counts a fault and notes it in the log of faults.
func (a *arena) happened(fault, what string, err error) {
	if err != nil {
		a.complain("%s: %v", fault, err)
		a.mu.Lock()
		a.failures[fault]++
		a.mu.Unlock()
		what = "failed: " + err.Error()
	} else if what == "" {
		return
	} else {
		a.count(fault)
	}
	line := fmt.Sprintf("%v %s: %s\n", time.Since(a.began).Round(time.Millisecond), fault, what)
	_, _ = a.events.WriteString(line)
	if a.Verbose {
		fmt.Fprint(os.Stderr, line)
	}
}

func (a *arena) count(fault string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[fault]++
}

func (a *arena) complain(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noise = append(a.noise, fmt.Sprintf(format, args...))
}

// violate notes something that must not happen, by its kind.
func (a *arena) violate(kind, example string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong[kind] = append(a.wrong[kind], example)
}

// lasts heals after d, or at the end of the run.
func (a *arena) lasts(d time.Duration, heal func()) {
	heal = sync.OnceFunc(heal) // who calls it second waits until it is done
	a.mu.Lock()
	a.healers = append(a.healers, heal)
	a.mu.Unlock()
	time.AfterFunc(d, heal)
}

// heal ends every fault.
func (a *arena) heal() {
	a.over.Store(true)
	a.asides.Wait()
	a.mu.Lock()
	healers := a.healers
	a.healers = nil
	a.mu.Unlock()
	for _, heal := range healers {
		heal()
	}
	for _, s := range append(a.relays, a.producers...) {
		s.proxy.CutSilent()
	}
}
