package outboxwebhook

import (
	"cmp"
	"context"
	"fmt"

	"github.com/txoutbox/outbox/internal/guard"
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
		var r result
		guard.Do(func() { r.value, r.err = f() }, func(panicked error) {
			r.err = cmp.Or(panicked, r.err)
			ended <- r
		})
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
