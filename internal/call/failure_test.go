package call

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

// What a member of a batch's result says is of its own task, and of no other part of the call: a
// deadlock or a panic that the handler took care of, a context of its own, a result.
func TestAMemberOfABatchResultIsOfItsOwnTaskAlone(t *testing.T) {
	t.Parallel()
	some := handlers.BatchResult{1: context.DeadlineExceeded, 2: &pq.Error{Code: "40P01"},
		3: &handlers.PanicError{Value: "oops"}, 4: handlers.Discard(errors.New("enough")), 5: nil}
	for _, err := range []error{some, fmt.Errorf("publish: %w", some), errors.Join(errors.New("first"), some)} {
		var failure error
		Guarded(func() error { return err }, func(err error) { failure = err })
		var p *handlers.PanicError
		if EndedContext(failure) || SQLState(failure) != "" || errors.As(failure, &p) ||
			handler.ResultOf(failure).Action != handler.ActionRetry {
			t.Errorf("%v has what a member has", err)
		}
		var of handlers.BatchResult
		if !errors.As(failure, &of) || len(of) != 4 {
			t.Fatalf("the members are %v", of)
		}
		if !EndedContext(of[1]) || SQLState(of[2]) != "40P01" || !errors.As(of[3], &p) ||
			handler.ResultOf(of[4]).Action != handler.ActionDiscard {
			t.Errorf("%v: a member has lost what it has", err)
		}
	}
}
