package relay

import (
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// transition is how a lease ends: done, back, or changed. Its SQL names the token, so only the holder of the
// lease can make it.
type transition struct {
	row      *store.Row
	token    string
	done     bool
	canceled bool           // done as it was canceled
	back     bool           // ready at once, as if it had not been claimed
	change   store.Change   // neither done nor back; if done, err is what it was discarded for
	keep     time.Duration  // done: in the history
	lostBy   sql.NullString // stays on the row: the relay that died while it ran this task
	mayWait  bool           // for its row, so it has a transaction of its own
	run      settled        // nil for those of a claim that is given back
	held     bool           // the lease was still the relay's: the transition was made
	outcome  Outcome        // of the run
}

// settled is a run of a leased task, to be told that its result is committed, or given up.
type settled interface {
	settle()
	handler() *handler.Handler
	ordered() bool // its task has an ordering key
}
