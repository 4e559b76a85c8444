package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// bench is what the cases of one run share.
type bench struct {
	plan    plan
	server  *server
	samples *measure.Samples
	out     io.Writer
	started time.Time
}

// benchCase is one case: what it does, and what its numbers say and do not say, for the report.
type benchCase struct {
	name, title string
	budget      int // seconds of a quick run on two cores that nobody else uses
	run         func(ctx context.Context, b *bench) error
	says        string
	metrics     []string // the columns of its table
}

// say prints a line with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "[%4.0f s] "+format+"\n", append([]any{time.Since(b.started).Seconds()}, args...)...)
}
