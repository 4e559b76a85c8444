package relay

import "database/sql"

// carried is what a task brings along for others than the relay that runs it: a relay reads it with the claim, and writes
// it again wherever the task goes on, to its next attempt or to the dead letters.
type carried struct {
	uniqueKey       sql.NullString
	uniqueUntilDone bool
	timeoutMS       sql.NullInt64 // of one run, the task's own
	iterations      int
	orderingKey     sql.NullString
	skipFailed      bool // a failed attempt takes the task out of its key's order
}

// In the order of args. Further parameters of a statement come before theirs.
const carriedColumns = `unique_key, unique_until_done, timeout_ms, iterations, ordering_key, skip_failed`

func (c *carried) args() []any {
	return []any{c.uniqueKey, c.uniqueUntilDone, c.timeoutMS, c.iterations, c.orderingKey, c.skipFailed}
}
