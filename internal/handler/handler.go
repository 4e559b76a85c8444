// Package handler is what a relay, and a test that runs tasks as a relay does, know of a registered
// handler and of its results. Package handlers makes them.
package handler

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox"
)

// Handler is one registered handler.
type Handler struct {
	Type        string
	Kind        outbox.Kind
	BatchSize   int           // tasks of one claim; 1 unless the kind is KindBatch
	GroupSize   int           // tasks that share a transaction of KindTx; 0: one
	GroupWithin time.Duration // from the first call of a group to the last one's begin
	Timeout     time.Duration // of one run; 0 is none, for KindLeased only
	Lease       time.Duration // of one claim, without heartbeats; 0 is with them
	MaxAttempts int
	MaxElapsed  time.Duration // from the first failure on; 0: any time
	NoJitter    bool          // the backoff's waits are not spread
	Priority    int           // added to each task's own in the choice between types
	Retention   time.Duration // how long finished tasks stay in the history; 0: they do not get there
	Forwards    bool          // it is package forward's: it waits for a broker

	MaxRunningPerRelay int           // calls at once in one relay; 0 is any number
	MaxRunning         int           // calls at once in all relays; 0 is any number
	Rate               int           // tasks that may start in RatePer, in all relays; 0 is any number
	RatePer            time.Duration // 0 where Rate is

	// Run calls the handler with its middleware. tx is nil for KindLeased. It does not recover
	// panics.
	Run func(ctx context.Context, tx *sql.Tx, claim Claim, tasks []*outbox.Task[json.RawMessage]) error

	Schedule Schedule
	Options  []outbox.Option // of the task type, for the payload of its next iteration
}

// Claim is the claim that took the tasks of a call, by the clock of its process: when it began, and
// when it had them; and its relay's log. It is zero where no relay runs the handler.
type Claim struct {
	Began, Ended time.Time
	Log          *slog.Logger
}
