package admin

import (
	"context"
	"time"
)

// PlaceOf is where the page begins after one that ends with a task.
func PlaceOf(t Task) string { return t.placeIn(t.State) }

// Searches reports whether a list of the filter has conditions that no index answers.
func Searches(f Filter) bool {
	s, err := newSearch(TaskQuery{Filter: f}, defaultLimit)
	return err != nil || s.searches()
}

// TailStuck is Tail, with another time for tell.
func (c *Client) TailStuck(ctx context.Context, dsn string, stuck time.Duration, tell func(TailEvent) error) error {
	return c.tail(ctx, dsn, TailFilter{}, tell, stuck)
}

// Columns are those that a Task is read from.
const Columns = taskColumns
