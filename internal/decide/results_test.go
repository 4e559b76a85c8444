package decide

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// said is a result of a handler, and the results in it that count: for a task, and as a batch's.
type said struct {
	err     error
	actions []handlers.Action // of the control results in it
	members map[int64]said    // of a BatchResult that it wraps alone
	batch   bool              // there is a BatchResult in it
}

// done says whether it asks to finish a task of a handler that is no Batch.
func (s said) done() bool {
	other := func(a handlers.Action) bool { return a != handlers.ActionDiscard }
	return s.err == nil || len(s.actions) > 0 && !slices.ContainsFunc(s.actions, other)
}

// doneOf says whether it asks to finish one task of a batch.
func (s said) doneOf(batch []int64, id int64) bool {
	if !s.batch {
		return s.done()
	}
	for of := range s.members {
		if !slices.Contains(batch, of) {
			return false
		}
	}
	one, is := s.members[id]
	return s.members != nil && (!is || one.done())
}

// typedNil is an error that is returned as a nil pointer by mistake.
type typedNil struct{}

func (*typedNil) Error() string { return "nil" }

// say makes any result, of constructors that get any error, nil among them, of wrapped and of
// joined ones.
func say(r *rand.Rand, depth int) said {
	n := r.IntN(14)
	if depth == 0 {
		n = r.IntN(3)
	}
	var inner said
	if n > 2 {
		inner = say(r, depth-1)
	}
	result := func(err error, a handlers.Action) said { return said{err: err, actions: []handlers.Action{a}} }
	wait := []time.Duration{-time.Hour, 0, 1, time.Minute, 8760 * time.Hour}[r.IntN(5)]
	switch n {
	case 0:
		return said{}
	case 1:
		return said{err: errors.New("failed")}
	case 2:
		return said{err: (*typedNil)(nil)}
	case 3:
		if wait <= 0 && inner.err != nil {
			return said{handlers.RetryAfter(wait, inner.err), inner.actions, inner.members, inner.batch}
		} else if wait <= 0 {
			return said{err: handlers.RetryAfter(wait, nil)}
		}
		return result(handlers.RetryAfter(wait, inner.err), handlers.ActionRetryAfter)
	case 4:
		return result(handlers.SnoozeWith(wait, inner.err), handlers.ActionSnooze)
	case 5:
		return result(handlers.Dead(inner.err), handlers.ActionDead)
	case 6:
		return result(handlers.RunAgain(wait), handlers.ActionRunAgain)
	case 7:
		task := &outbox.Task[int]{ID: r.Int64N(4), Type: "ANY"}
		return result(handlers.RunAgainWith(task, wait, 7), handlers.ActionRunAgain)
	case 8:
		if inner.err == nil {
			return said{}
		}
		return result(handlers.Discard(inner.err), handlers.ActionDiscard)
	case 9:
		if inner.err == nil {
			return said{err: fmt.Errorf("wrapped: %w", inner.err)}
		}
		return said{fmt.Errorf("wrapped: %w", inner.err), inner.actions, inner.members, inner.batch}
	case 10, 11:
		other := say(r, depth-1)
		out := said{errors.Join(inner.err, other.err), slices.Concat(inner.actions, other.actions), nil, inner.batch || other.batch}
		switch {
		case other.err == nil:
			out.members = inner.members
		case inner.err == nil:
			out.members = other.members
		}
		return out
	}
	some, members := handlers.BatchResult{}, map[int64]said{}
	for range r.IntN(4) {
		id := r.Int64N(40) / 10 // 0 is none of the batch
		if r.IntN(3) > 0 {
			id = max(id, 1)
		}
		members[id] = say(r, depth-1)
		some[id] = members[id].err
	}
	return said{some, nil, members, true}
}

// The log is where the error of such a task is found, as its type may have no history.
func TestAnOutcomeThatFinishesATaskThoughItIsNotDoneIsInTheLogWithItsError(t *testing.T) {
	for o := range Outcome(len(Outcomes())) {
		if o.Finishes() && o != Done && (!o.Tells() || o.Record() == "") {
			t.Errorf("%s: tells %v, record %q", o, o.Tells(), o.Record())
		}
	}
}

// What a handler says by mistake never finishes a task: a task is done by nil, or by a result that
// says done and nothing else.
func TestATaskIsDoneOnlyByAResultThatSaysSo(t *testing.T) {
	t.Parallel()
	var given error
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[int]("TX"), func(context.Context, *sql.Tx, *outbox.Task[int]) error { return given })
	handlers.Leased(reg, outbox.NewTaskType[int]("LEASED"), func(context.Context, *outbox.Task[int]) error { return given })
	handlers.Batch(reg, outbox.NewTaskType[int]("BATCH"), 3,
		func(context.Context, *sql.Tx, []*outbox.Task[int]) error { return given })
	seed, done := rand.Uint64(), 0
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		result := say(r, 3)
		given = result.err
		for _, h := range handler.Registered(reg) {
			ids, bad := []int64{1}, int64(0) // a task whose payload does not decode
			if h.Kind == outbox.KindBatch {
				ids = []int64{1, 2, 3}[:1+2*r.IntN(2)]
				bad = r.Int64N(int64(len(ids)) + 1)
			}
			got := doneBy(h, ids, bad)
			for _, id := range ids {
				want := result.done()
				if h.Kind == outbox.KindBatch {
					want = result.doneOf(ids, id) && id != bad && (bad == 0 || result.err == nil || result.batch)
				}
				if got[id] != want {
					t.Fatalf("seed %d, %s, task %d of %v (%d does not decode): done %v by %#v, want %v",
						seed, h.Kind, id, ids, bad, got[id], given, want)
				}
				if want {
					done++
				}
			}
		}
	}
	if done < 1000 {
		t.Errorf("%d tasks are done", done)
	}
}

// doneBy are the tasks that a call finishes.
func doneBy(h *handler.Handler, ids []int64, bad int64) map[int64]bool {
	tasks, rows := []*store.Task{}, []*store.Row{}
	for _, id := range ids {
		payload := `7`
		if id == bad {
			payload = `"bad"`
		}
		tasks = append(tasks, &store.Task{ID: id, Type: h.Type, Payload: json.RawMessage(payload)})
		rows = append(rows, &store.Row{ID: id, Max: 3})
	}
	var failure error
	call.Guarded(func() error { return h.Run(context.Background(), nil, handler.Claim{}, tasks) }, func(err error) { failure = err })
	work, verdicts := NewRun(nil, h, call.Result{Err: failure}).Tasks(rows)
	out := map[int64]bool{}
	for i, id := range ids {
		out[id] = work == Keep && (verdicts == nil || verdicts[i].Outcome.Gone())
	}
	return out
}
