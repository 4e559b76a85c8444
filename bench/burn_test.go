package main

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// A slow machine has handled a task by the limit, and committed none.
func TestATurnLastsUntilATaskIsDone(t *testing.T) {
	p := measure.NewProgress(2)
	p.Done(1)
	looks := 0
	s := side{tasks: 2, left: func(context.Context, *sql.DB) (int, error) {
		if looks++; looks <= 3 {
			return 2, nil
		}
		return 1, nil
	}}
	done, _, err := follow(t.Context(), p, s, &database{}, time.Nanosecond)
	if err != nil || done != 1 {
		t.Errorf("%d are done, %v; want 1", done, err)
	}
}
