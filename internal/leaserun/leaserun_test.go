package leaserun

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

func TestALeaseIsTheRelaysFromBeforeItsClaimUntilItsResultIsWritten(t *testing.T) {
	t.Parallel()
	m := newMine()
	rows := []store.Lease{{TaskID: 1, Token: "a"}, {TaskID: 2, Token: "a"}, {TaskID: 1, Token: "b"}}
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"before the claim", func() {}, "1a 2a 1b "},
		{"the claim is sent", func() { m.claim("a") }, "1b "},
		{"it is committed", func() { m.claimed("a", []*store.Row{{ID: 1}, {ID: 2}}) }, "1b "},
		{"a result is written", func() { m.written(rows[0]) }, "1a 1b "},
		{"the other one is given up", func() { m.givenUp(rows[1]) }, "1a 1b "},
		{"its lease lasts", func() { m.lost(nil) }, "1a 1b "},
		{"its lease has ended", func() { m.lost(map[store.Lease]bool{rows[1]: true}) }, "1a 2a 1b "},
		{"another claim fails", func() { m.claim("b"); m.claimed("b", nil) }, "1a 2a 1b "},
	} {
		step.do()
		got := ""
		for _, id := range m.leftOver(rows) {
			got += fmt.Sprint(id.TaskID, id.Token, " ")
		}
		if got != step.want {
			t.Errorf("%s: left over are %q, want %q", step.name, got, step.want)
		}
	}
}

// Of a relay that does not wait for results any more, no result waits for those before it.
func TestAnAbandonedResultDoesNotWaitForAWriteSlot(t *testing.T) {
	t.Parallel()
	told := make(chan struct{})
	s := &store.Store{Identity: &store.Identity{}}
	l := New(Params{Store: s, Handling: t.Context(),
		Report:  report.New(slog.New(slog.DiscardHandler), nil, s.Identity, func(int64) {}),
		NewPace: func() pg.Pace { return pg.NewPace(&pg.Broadcast{}, func() {}) },
		Ended:   func([]*Result) { close(told) }})
	l.Abandon()
	for range singleWrites {
		l.results.writeSlots <- struct{}{}
	}
	r := &Result{end: store.LeaseEnd{Row: &store.Row{}}, run: &Run{leases: l, lease: lease{row: &store.Row{}}}}
	go l.writeGroup([]*Result{r}, l.results.writeSlots)
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}
