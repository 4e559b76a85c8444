package relay_test

import (
	"maps"

	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/relay"
)

// statements are those of a relay on the table of tasks, for the tests of their plans. A lease, a
// claim of one task, Complete and the end of leases are functions, whose plans are theirs.
var statements = map[string]string{
	"claim": store.ClaimSQL, "claim one": store.ClaimOneSQL, "return lease": store.ReturnLeaseSQL,
	"dead lease": store.DeadLeaseSQL, "begin suspects": store.BeginSuspectsSQL, "extend": store.ExtendSQL, "hear": store.HearSQL, "remove canceled": store.RemoveCanceledSQL,
	"take over due": upkeep.TakeOverDueSQL, "take over": upkeep.TakeOverSQL, "expire": upkeep.ExpireSQL, "stranded": upkeep.StrandedSQL, "take stranded": upkeep.TakeStrandedSQL,
	"dead relays": upkeep.DeadRelaysSQL, "unhandled": upkeep.UnhandledSQL, "reap runs": upkeep.ReapRunsSQL, "reap relays": upkeep.ReapRelaysSQL, "sign off": upkeep.SignOffSQL,
	"key page": upkeep.KeyPageSQL, "lock keys": upkeep.LockKeysSQL, "delete keys": upkeep.DeleteKeysSQL,
	"lock slots": store.LockSlotsSQL, "fill slots": store.FillSlotsSQL, "lock back": store.LockBackSQL, "lease again": store.LeaseAgainSQL,
	"complete and keep": store.CompleteAndKeepSQL, "lock heads": store.LockHeadsSQL, "promote heads": store.PromoteHeadsSQL,
}

func init() { maps.Copy(statements, relay.PollStatements) }
