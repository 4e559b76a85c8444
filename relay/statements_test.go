package relay_test

import (
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// sent are the statements of a relay, by the names in their comments.
var sent = relaytest.Statements("internal/store", "internal/upkeep", "relay")

// statements are those on the table of tasks, for the tests of their plans. A lease, a
// claim of one task, Complete and the end of leases are functions, whose plans are theirs.
var statements = func() map[string]string {
	out := map[string]string{}
	for name, comment := range map[string]string{
		"claim": "claim", "claim one": "claim one task", "poll": "poll", "last": "poll the ends of lanes",
		"promote scheduled": "promote scheduled tasks", "stranded leases": "find leases of dead relays",
		"return lease": "end a lease", "dead lease": "end a lease in the dead letters", "lease again": "run a leased task again",
		"begin suspects": "count the attempts of suspects", "extend": "extend a lease",
		"hear": "hear what became of running tasks", "compare leases": "compare leases",
		"free leases": "free leases that nobody runs", "remove canceled": "remove canceled tasks",
		"complete and keep": "complete leased tasks and keep them", "lock back": "lock a task whose claim is gone",
		"lock heads": "lock the promotion of heads", "promote heads": "promote waiting tasks to heads",
		"lock slots": "lock slots of a type", "fill slots": "fill slots with leases",
		"take over due": "whether leases are to be taken over", "take over": "take leases over from dead relays",
		"dead relays": "lock dead relays", "leases end": "end leases that ran out",
		"stranded": "lock leases of relays that have no row", "take stranded": "take over leases of relays that have no row",
		"unhandled": "types that no living relay has a handler for", "sign off": "sign off",
		"reap runs": "reap runs of tasks that are gone", "reap relays": "reap relays that died long ago",
		"key page": "read a page of unique keys", "lock keys": "lock unique keys of tasks that are gone",
		"delete keys": "delete unique keys of tasks that are gone",
	} {
		if out[name] = sent[comment]; out[name] == "" {
			panic("there is no statement to " + comment)
		}
	}
	return out
}()

type statement struct {
	query string
	args  []any
}

// claimOf claims up to limit tasks of the type TX: from a task on, or those that have been due longest.
func claimOf(limit, from int, due any) statement {
	return statement{store.ClaimSQL, []any{"TX", 0, 0, from, 0, limit, due, "0", "0", "0"}}
}

// leaseOf leases up to limit tasks from tasks on, in turn; or those that have been due longest.
func leaseOf(taskType string, limit int, relayID, token string, length time.Duration, due any, from ...int) statement {
	var until any
	if length > 0 {
		until = length.Microseconds()
	}
	var places [][]any
	for _, id := range from {
		places = append(places, []any{0, 0, id, 0, due})
	}
	return statement{store.LeaseSQL, []any{taskType, limit, relayID, token, until, 1000, 0, pq.Array(places)}}
}
