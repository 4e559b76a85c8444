package leaserun

import (
	"log/slog"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// Of a relay that does not wait for results any more, no result waits for those before it.
func TestAnAbandonedResultDoesNotWaitForAWriteSlot(t *testing.T) {
	t.Parallel()
	told := make(chan struct{})
	s := &store.Store{Identity: &store.Identity{}}
	l := New(Params{Store: s, Report: report.New(slog.New(slog.DiscardHandler), nil, s.Identity), Handling: t.Context(),
		NewPace: func() pg.Pace { return pg.NewPace(&pg.Broadcast{}, func() {}) },
		Ended:   func([]*Result) { close(told) }})
	l.Abandon()
	for range singleWrites {
		l.results.writeSlots <- struct{}{}
	}
	r := &Result{end: store.LeaseEnd{Row: &store.Row{}}, run: &Run{lease: lease{row: &store.Row{}}}}
	go l.writeGroup([]*Result{r}, l.results.writeSlots)
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}
