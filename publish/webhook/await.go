package outboxwebhook

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/handlers"
)

// await calls a function of the Config, and waits for it until ctx ends. One that hangs goes on,
// and costs its event an attempt: it does not hold up the endpoint.
func await[T any](ctx context.Context, name string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		r := result{err: errors.New("it ended its goroutine")}
		defer func() { ended <- r }()
		call := handlers.Recover()(func(context.Context, *handlers.Call) (err error) {
			r.value, err = f()
			return err
		})
		r.err = call(ctx, nil)
	}()
	var r result
	select {
	case r = <-ended:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if r.err != nil {
		return r.value, fmt.Errorf("outboxwebhook: Config.%s: %w", name, r.err)
	}
	return r.value, nil
}
