//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// harm is what a fault may cost the app: what its harm does not allow is checked. A run has the
// worst harm of its faults.
type harm int

const (
	calm      harm = iota // a handler runs longer or waits
	quiet                 // a task.Complete fails, after which its task runs again
	repeated              // a Leased task that was done runs again, without an attempt
	blameless             // runs are cut off; no process and no handler's time is lost, so no attempt counts
	blamed                // attempts count
)

// fault is one way to break something.
type fault struct {
	name   string
	weight int // how often it is chosen
	harm   harm
	help   string
	// do breaks it and returns what it did, or "" if there was nothing to break. Its choices come
	// from r.
	do func(a *arena, r *rand.Rand) (string, error)
}

var faults = []fault{
	{"kill", 40, blamed, "SIGKILL of a relay, at any moment", killRelay},
	{"point", 20, blamed, "SIGKILL of a relay at a point of its loop: a claim sent or answered, the journal, the " +
		"handler, the end of a claim, COMMIT sent or answered, bookkeeping", killAtPoint},
	{"terminate", 12, blameless, "pg_terminate_backend of some of the app's sessions", terminate},
	{"backend", 2, blamed, "SIGKILL of a backend: the server restarts by itself", killBackend},
	{"crash", 4, blameless, "immediate stop of the server, and start", crash},
	{"commit", 30, blameless, "the request or the reply of a COMMIT is lost", cutCommit},
	{"cut", 8, blameless, "a connection is cut, at once or some bytes later", cut},
	{"silence", 2, blamed, "a connection falls silent", silence(false)},
	{"delay", 3, blameless, "all answers come late", delay},
	{"freeze", 1, blamed, "SIGSTOP of a relay, past its lease", freeze},
	{"failover", 2, blameless, "the primary is killed and its synchronous standby promoted", failover},
	{"restore", 2, repeated, "results of Leased tasks are lost, as by a failover to an asynchronous standby: the " +
		"tasks are leased again by relays that live", restoreLeases},
	{"connections", 1, blameless, "the database takes few connections", fewConnections},
	{"xmin", 1, blameless, "a transaction keeps its snapshot", holdSnapshot},
	{"notify", 3, blameless, "a LISTEN connection falls silent", silence(true)},
	{"poison", 2, blamed, "tasks that end their process or connection", enqueuePoison},
	{"rolling", 1, blamed, "SIGTERM of one relay after the other, each starts again and migrates", rollingRestart},
	{"drain", 4, blamed, "SIGTERM of a relay", drain},
	{"lock", 3, quiet, "a table of the outbox is locked against all others, as by VACUUM FULL", lockTable},
	{"rewrite", 2, quiet, "all tables of the outbox are rewritten, by VACUUM FULL, CLUSTER, ALTER TABLE " +
		"or pg_repack (if it is installed); the server's identifier is hidden", rewriteTables},
	{"settings", 1, blamed, "the database has settings by which PostgreSQL plans badly and compiles " +
		"statements, and the app's role a statement_timeout of 60 ms", hinder},
	{"unreadable", 1, blameless,
		"a task's payload cannot be read, as after damage on the disk (needs the extension pg_surgery)", damageTask},
	{"forged", 2, calm, "a role without rights sends wake-ups that no relay can follow", forgeWakeUps},
	{"standby", 1, calm, "commits wait for a synchronous standby that is away", standbyAway},
	{"operator", 8, calm, "an operator makes many retrying tasks due, or due later, or many tasks more or less " +
		"urgent", changeTasks},
	{"target", 5, calm, "the broker refuses one target of events", refuseTarget},
	{"password", 2, calm, "the broker's password is rotated, and relays have the new one late", rotatePassword},
	{"clock", 4, blameless, "the server's clock steps (needs libfaketime)", stepClock},
	{"ahead", 4, blameless, "the server's clock is a day ahead for some seconds (needs libfaketime)", clockAhead},
}

// notInAll are the faults that need more than PostgreSQL's binaries.
var notInAll = []string{"clock", "ahead"}

func faultHelp() string {
	var b strings.Builder
	for _, f := range faults {
		fmt.Fprintf(&b, "%s (%s)\n", f.name, f.help)
	}
	return b.String() + "all is each but " + strings.Join(notInAll, ", ")
}

func faultNamed(name string) *fault {
	i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return &faults[i]
}

// worst is the worst harm of the chosen faults.
func (o options) worst() (w harm) {
	for _, name := range o.faults {
		w = max(w, faultNamed(name).harm)
	}
	return w
}

// chosenFaults are the names in a list with commas, each once; all stands for several.
func chosenFaults(list string) (chosen []string, err error) {
	if list == "none" {
		return nil, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		names := []string{name}
		if name == "all" {
			names = nil
			for _, f := range faults {
				if !slices.Contains(notInAll, f.name) {
					names = append(names, f.name)
				}
			}
		}
		for _, name := range names {
			if faultNamed(name) == nil {
				return nil, fmt.Errorf("-faults: there is no %q; there are\n%s", name, faultHelp())
			}
			if !slices.Contains(chosen, name) {
				chosen = append(chosen, name)
			}
		}
	}
	return chosen, nil
}

// due is a fault of the schedule.
type due struct {
	at    time.Duration
	fault *fault
	seed  uint64 // of its choices
}

// schedule is the same for the same seed, faults, length and distance.
func schedule(o options) (all []due) {
	r := rand.New(rand.NewPCG(o.seed, 0))
	total := 0
	for _, name := range o.faults {
		total += faultNamed(name).weight
	}
	if total == 0 {
		return nil
	}
	for at := time.Second; at < o.length; at += o.every/2 + time.Duration(r.Int64N(int64(o.every))) {
		n := r.IntN(total)
		for _, name := range o.faults {
			f := faultNamed(name)
			if n -= f.weight; n < 0 {
				all = append(all, due{at, f, r.Uint64()})
				break
			}
		}
	}
	return all
}

// inject injects the faults of the schedule, one after the other. A slow one delays the next.
func inject(ctx context.Context, a *arena, o options) {
	began := time.Now()
	for _, d := range schedule(o) {
		wait(ctx, max(time.Until(began.Add(d.at)), o.every/5))
		if ctx.Err() != nil || time.Since(began) > o.length {
			return
		}
		what, err := d.fault.do(a, rand.New(rand.NewPCG(d.seed, 0)))
		a.happened(d.fault.name, what, err)
	}
	wait(ctx, time.Until(began.Add(o.length)))
}
