package run

import (
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// transition is how a lease ends. Its SQL names the token, so only the holder of the lease can make
// it. When the lease was lost, its outcome is another one than the verdict's.
type transition struct {
	verdict
	row     *store.Row
	token   string
	keep    time.Duration  // done: in the history
	lostBy  sql.NullString // stays on the row: the relay that died while it ran this task
	mayWait bool           // for its row, so it has a transaction of its own
	run     Settled        // nil for those of a claim that is given back
	held    bool           // the lease was still the relay's: the transition was made
}

// settled is a run of a leased task, to be told that its result is committed, or given up.
type Settled interface {
	settle()
	Handler() *handler.Handler
	Ordered() bool // its task has an ordering key
}
