package outboxtest

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/relay"
)

// database is where a stepper's tasks are: a pool, or an open transaction of the caller's.
type database interface {
	// InTx calls f in a transaction, or under a savepoint of the open one. It keeps what f did,
	// with the settings of the open transaction as they were before. After an error of f, which it
	// returns, a panic or a Goexit it undoes all of it.
	InTx(ctx context.Context, f func(tx *sql.Tx) error) error
}

// step is a run by a stepper.
type step struct {
	run  Run
	wait time.Duration // until the task is due again
}

// stepper runs tasks one after the other for the tests of apps, where the transaction may be the
// test's own. It has a relay's claims, calls, decisions and records, without journal, heartbeat and
// connections.
type stepper struct {
	in    database
	store store.Store
	log   *slog.Logger // gets a relay's records of an app's functions
}

// newRun is how a run of the handler ended, by the stepper's clock.
func (s *stepper) newRun(h *handler.Handler, out call.Result) decide.Run {
	e := decide.NewRun(s.log, h, out)
	e.Ended = e.Ended.Add(s.store.Ahead)
	return e
}

// stepOf is the step of a task in its given attempt.
func stepOf(r *store.Row, attempt int, v decide.Verdict) step {
	out := Run{ID: r.ID, Type: r.TaskType, Attempt: attempt, Outcome: relay.Outcome(v.Outcome.String())}
	switch out.Outcome {
	case relay.OutcomeDiscarded, relay.OutcomeFailed, relay.OutcomeThrottled, relay.OutcomeDead:
		out.Err = call.Original(v.Change.Err)
	}
	return step{out, v.Change.Wait}
}

// misuse is a fault of a handler that a relay survives on a connection of its own, and that a test
// should hear of.
type misuse struct{ error }

const (
	misuseAbandoned = "the handler did not return after its context's end"
	misuseEnded     = "the handler ended the transaction; that is the relay's to do"
	misuseUnusable  = "the handler left its transaction unusable (rows not closed, a context of its own that ended " +
		"inside a statement?)"
)

// newMisuse is a misuse by the handler of a task.
func newMisuse(taskType string, taskID int64, text string) *misuse {
	return &misuse{fmt.Errorf("%s #%d: %s", taskType, taskID, text)}
}

// misuseBy is the misuse that the end of a transaction shows.
func misuseBy(h *handler.Handler, taskID int64, end apptx.Ended) *misuse {
	text := misuseUnusable
	if end.How == apptx.EndedByCode {
		text = misuseEnded
	}
	return newMisuse(h.Type, taskID, fmt.Sprintf("%s: %v", text, end.Err))
}
