package progress

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
)

// Notes are the progress and the results that handlers note of the tasks of one claim, or of one leased
// run. They implement taskrun.Run for tasks without a lease.
type Notes struct {
	Board   *Board // nil: the progress is shown to nobody
	History bool   // the handler's results are kept

	over bool

	mu      sync.Mutex
	shown   map[int64]struct{}
	results map[int64]string
}

// SetProgress implements taskrun.Run.
func (n *Notes) SetProgress(taskID int64, fraction float64, message string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return notRunning(taskID)
	}
	if n.shown == nil {
		n.shown = map[int64]struct{}{}
	}
	n.shown[taskID] = struct{}{}
	n.Board.set(n, taskID, fraction, message)
	return nil
}

// SetResult implements taskrun.Run.
func (n *Notes) SetResult(taskID int64, result string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.over:
		return notRunning(taskID)
	case !n.History:
		return fmt.Errorf("%w: task %d: register its handler with handlers.Retention", outbox.ErrNoHistory, taskID)
	case result == "":
		delete(n.results, taskID)
		return nil
	case n.results == nil:
		n.results = map[int64]string{}
	}
	n.results[taskID] = result
	return nil
}

func notRunning(taskID int64) error {
	return fmt.Errorf("%w: task %d: its run has ended", outbox.ErrNotRunning, taskID)
}

// Result is the result of a task, as JSON; "" for none.
func (n *Notes) Result(taskID int64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.results[taskID]
}

// Again forgets what was noted, as the handler is called once more.
func (n *Notes) Again() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hide()
	n.results = nil
}

// Called hides the progress as the handler has returned. Another task of the run may show its own.
func (n *Notes) Called() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hide()
}

// End hides the progress, and refuses further notes.
func (n *Notes) End() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
	n.hide()
}

func (n *Notes) hide() {
	for id := range n.shown {
		n.Board.drop(n, id)
	}
	n.shown = nil
}

// Complete implements taskrun.Run.
func (n *Notes) Complete(context.Context, func(*sql.Tx) error) error { return outbox.ErrNotLeased }

// Extend implements taskrun.Run.
func (n *Notes) Extend(context.Context, time.Duration) error { return outbox.ErrNotLeased }
