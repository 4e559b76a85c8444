package pg

import (
	"strconv"
	"time"
)

// Millis is a duration as the server's settings take it; at least 1, as 0 would mean none.
func Millis(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

const (
	// StatementTimeout bounds each statement of the relay's own.
	StatementTimeout = 10 * time.Second
	// Bookkeeping bounds each statement, lock wait and idle moment of a claim's transaction outside
	// the handler.
	Bookkeeping = 10 * time.Second

	idleTimeout  = 15 * time.Second // of a transaction of the relay's own, each of whose statements follows at once
	replyTimeout = 30 * time.Second // to BEGIN, COMMIT and ROLLBACK; COMMIT may have to wait for a standby
)

// CommitAsync, evaluated by a statement, has its transaction commit without waiting for the disk or
// a synchronous standby. It is for work that is repeated if a crash of the server loses it. So
// liveness never waits for durability.
const CommitAsync = "set_config('synchronous_commit', 'off', true)"

// letGo has the server end the transaction of a relay that is frozen or gone, and its locks.
// Otherwise the server waits for hours. It is for transactions of more than one message.
var letGo = "SET LOCAL idle_in_transaction_session_timeout = " + Millis(idleTimeout)

// beginSQL begins a transaction as InTx does.
const beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"
