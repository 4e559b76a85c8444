//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// fault is one way to break something.
type fault struct {
	name   string
	weight int // how often it is chosen
	help   string
	// do breaks it and returns what it did, or "" if there was nothing to break. Its choices come
	// from r.
	do func(a *arena, r *rand.Rand) (string, error)
}

var faults = []fault{
	{"kill", 40, "SIGKILL of a relay, at any moment", killRelay},
	{"point", 20, "SIGKILL of a relay at a point of its loop: a claim sent or answered, the journal, the handler, " +
		"the end of a claim, COMMIT sent or answered, bookkeeping", killAtPoint},
	{"terminate", 12, "pg_terminate_backend of some of the app's sessions", terminate},
	{"backend", 2, "SIGKILL of a backend: the server restarts by itself", killBackend},
	{"crash", 4, "immediate stop of the server, and start", crash},
	{"commit", 30, "the request or the reply of a COMMIT is lost", cutCommit},
	{"cut", 8, "a connection is cut, at once or some bytes later", cut},
	{"silence", 2, "a connection falls silent", silence(false)},
	{"delay", 3, "all answers come late", delay},
	{"freeze", 1, "SIGSTOP of a relay, past its lease", freeze},
	{"failover", 2, "the primary is killed and its synchronous standby promoted", failover},
	{"connections", 1, "the database takes few connections", fewConnections},
	{"xmin", 1, "a transaction keeps its snapshot", holdSnapshot},
	{"notify", 3, "a LISTEN connection falls silent", silence(true)},
	{"poison", 2, "tasks that end their process or connection", enqueuePoison},
	{"misbehaving", 3, "tasks whose handlers misbehave", enqueueMisbehaving},
	{"rolling", 1, "SIGTERM of one relay after the other, each starts again and migrates", rollingRestart},
	{"drain", 4, "SIGTERM of a relay", drain},
	{"lock", 3, "a table of the outbox is locked against all others, as by VACUUM FULL", lockTable},
	{"unreadable", 1, "a task's payload cannot be read, as after damage on the disk (needs the extension pg_surgery)", damageTask},
	{"forged", 2, "a role without rights sends wake-ups that no relay can follow", forgeWakeUps},
	{"standby", 1, "commits wait for a synchronous standby that is away", standbyAway},
	{"target", 5, "the broker refuses one target of events", refuseTarget},
	{"password", 2, "the broker's password is rotated, and relays have the new one late", rotatePassword},
	{"operator", 6, "tasks are cancelled, dead letters redriven, types paused", operate},
	{"disk", 2, "the disk is full for a while (a small tmpfs of the run's own; needs root)", fillDisk},
	{"clock", 4, "the server's clock steps (needs libfaketime)", stepClock},
	{"ahead", 4, "the server's clock is a day ahead for some seconds (needs libfaketime)", clockAhead},
}

// notInAll are the faults that need more than PostgreSQL's binaries.
var notInAll = []string{"disk", "clock", "ahead"}

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

// chosenFaults are the names in a list with commas, each once; all stands for several.
func chosenFaults(list string) (chosen []string, err error) {
	if list == "none" {
		return nil, nil
	}
	for name := range strings.SplitSeq(list, ",") {
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
