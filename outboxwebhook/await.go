package outboxwebhook

import (
	"context"
	"errors"
	"fmt"
)

// await calls a function of the Config, and waits for it until ctx ends. One that hangs goes on, and
// costs its event an attempt: it does not hold up the endpoint.
func await[T any](ctx context.Context, name string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		r := result{err: errors.New("it ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("it panicked: %v", p)
			}
			ended <- r
		}()
		r.value, r.err = f()
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
