package admin

import (
	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// PlaceOf is where the page begins after one that ends with a task.
func PlaceOf(t Task) string { return t.placeIn(t.State) }

// Searches reports whether a list of the filter has conditions that no index answers.
func Searches(f Filter) bool {
	s, err := newSearch(TaskQuery{Filter: f}, defaultLimit)
	return err != nil || s.searches()
}

// TailMost is how many notifications wait for tell.
const TailMost = tailMost

// Columns are those that a Task is read from.
const Columns = taskColumns

// TailQueue is the queue of a tail that gets these notifications.
func TailQueue(notified <-chan *pq.Notification) (texts <-chan string, leftOut func() int64) {
	q := newTailQueue(&pg.Subscription{Notified: notified})
	return q.texts, q.leftOut.Load
}
