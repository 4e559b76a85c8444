package store

// optional are the optional columns of a task. A relay reads them with the claim, and writes them
// again wherever the task goes on, to its next attempt or to the dead letters. The timeline is
// written with what is added to it.
type optional struct {
	uniqueKey       *string
	TimeoutMS       *int64 // of one run, the task's own
	iterations      int
	orderingKey     *string
	uniqueUntilDone bool
	skipFailed      bool // a failed attempt takes the task out of its key's order
	timeline        *string
}

// In the order of args. Further parameters of a statement come before theirs.
const OptionalColumns = `unique_key, unique_until_done, timeout_ms, iterations, ordering_key, skip_failed`

func (c *optional) args() []any {
	return []any{c.uniqueKey, c.uniqueUntilDone, c.TimeoutMS, c.iterations, c.orderingKey, c.skipFailed}
}
