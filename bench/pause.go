package main

import (
	"context"
	"time"
)

// pause lets time pass that is measured or asked for: an idle relay, a load, the gap between two
// arrivals, the work of a handler. It ends early with ctx, whose end the next statement reports.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
