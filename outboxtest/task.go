package outboxtest

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/taskrun"
)

var newTasks atomic.Int64

// NewTask makes a task for a unit test that calls a handler itself, without a database. It is in its
// first attempt of 20, due and created now; each has another ID. Change its fields as the test needs
// it. With a lease it is a Leased handler's. For a Tx or Batch handler lease is nil: Complete and
// Extend return outbox.ErrNotLeased. [NotesOf] has its progress and result.
//
// The payload is not encoded and decoded, and middleware and options of the handler have no effect:
// see [Drain].
func NewTask[P any](t testing.TB, taskType outbox.TaskType[P], payload P, lease *Lease) *outbox.Task[P] {
	t.Helper()
	if err := checkType(taskType); err != nil {
		t.Fatalf("%v", err)
	}
	now := time.Now().Truncate(time.Microsecond)
	task := &outbox.Task[P]{ID: newTasks.Add(1), DatabaseID: "00000000-0000-0000-0000-000000000000", Type: taskType.Name(),
		Payload: payload, Attempt: 1, MaxAttempts: 20, RunAt: now, CreatedAt: now}
	noted := &notes{}
	*taskrun.Of(task) = noted
	if lease != nil {
		h := &handler.Handler{Type: task.Type, Options: taskType.New(payload).Options}
		*taskrun.Of(task) = &leased{lease, noted, func(err error) error { return h.CheckAgain(task.ID, "", err) }}
	}
	return task
}

// Notes are the latest progress and result that a handler has told of a task's run.
type Notes struct {
	Fraction float64 // of outbox.Task.SetProgress
	Message  string
	Result   json.RawMessage // of outbox.Task.SetResult; nil for none
}

// NotesOf returns the notes of a task that [NewTask] has made; zero of any other.
func NotesOf[P any](task *outbox.Task[P]) Notes {
	switch run := (*taskrun.Of(task)).(type) {
	case *notes:
		return run.latest()
	case *leased:
		return run.notes.latest()
	}
	return Notes{}
}

// notes is the run of a task by NewTask. Its type has a history as far as it knows.
type notes struct {
	mu  sync.Mutex
	all Notes
}

func (n *notes) latest() Notes {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all
}

func (n *notes) SetProgress(_ int64, fraction float64, message string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all.Fraction, n.all.Message = fraction, message
	return nil
}

func (n *notes) SetResult(_ int64, result string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all.Result = nil; result != "" {
		n.all.Result = json.RawMessage(result)
	}
	return nil
}

func (n *notes) Complete(context.Context, func(*sql.Tx) error) error { return outbox.ErrNotLeased }

func (n *notes) Extend(context.Context, time.Duration) error { return outbox.ErrNotLeased }

// Lease is how Complete and Extend of a task by [NewTask] go, and a record of their calls. Set Tx
// and Err before the handler is called. Read the other fields once it has returned.
type Lease struct {
	// Tx is the transaction for Complete's function, on any database. It stays open; the writes of a
	// function that fails are rolled back. Without it each Complete fails.
	Tx *sql.Tx
	// Err is what Complete and Extend return unless it is nil, as outbox.ErrLeaseLost. They do
	// nothing else then.
	Err error

	// Completed says that a Complete returned nil. Complete and Extend return outbox.ErrLeaseLost
	// after that.
	Completed bool
	// Result is the error of the latest Complete, or the handlers.RunAgain that its function
	// returned; nil before the first one.
	Result error
	// Extended has the d of each Extend that returned nil.
	Extended []time.Duration

	mu sync.Mutex // of the record
}

// err is what a call that begins returns at once.
func (l *Lease) err(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.Err != nil:
		return l.Err
	case l.Completed:
		return outbox.ErrLeaseLost
	}
	return context.Cause(ctx)
}

// leased is a Lease as its task sees it.
type leased struct {
	of    *Lease
	notes *notes
	check func(error) error // the result of Complete's function
}

func (l *leased) SetProgress(taskID int64, fraction float64, message string) error {
	return l.notes.SetProgress(taskID, fraction, message)
}

func (l *leased) SetResult(taskID int64, result string) error {
	return l.notes.SetResult(taskID, result)
}

func (l *leased) Extend(ctx context.Context, d time.Duration) error {
	if err := l.of.err(ctx); err != nil {
		return err
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.of.Extended = append(l.of.Extended, d)
	return nil
}

func (l *leased) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	again, err := l.complete(ctx, fn)
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.of.Completed, l.of.Result = l.of.Completed || err == nil, cmp.Or(err, again)
	return err
}

// complete calls the function. If it asks for another iteration, that is again.
func (l *leased) complete(ctx context.Context, fn func(*sql.Tx) error) (again, err error) {
	if err := l.of.err(ctx); err != nil {
		return nil, err
	}
	if l.of.Tx == nil {
		return nil, errors.New("outboxtest: Complete needs a transaction for its function: set Lease.Tx")
	}
	h, err := newHeld(ctx, l.of.Tx)
	if err != nil {
		return nil, err
	}
	var failure error
	err = h.InTx(ctx, func(tx *sql.Tx) error {
		result := l.check(fn(tx))
		if handler.ResultOf(result).Action == handler.ActionRunAgain {
			again, result = result, nil
		}
		failure = result
		return result
	})
	if err != nil && failure == nil {
		err = fmt.Errorf("outboxtest: Complete: after its function: %w", err)
	}
	return again, err
}
