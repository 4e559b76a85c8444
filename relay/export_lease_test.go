package relay

import (
	"context"

	"github.com/txoutbox/outbox/internal/store"
)

// EndTogether ends leases as done, each task with its token, in one group. It says which were held.
func (r *Relay) EndTogether(taskIDs []int64, tokens []string) (held []bool, err error) {
	r.runner = r.newRunner(context.Background(), context.Background())
	defer r.Conns.Release()
	var group []*transition
	for i, id := range taskIDs {
		group = append(group, &transition{row: &store.Row{ID: id}, token: tokens[i], verdict: verdict{done: true}})
	}
	err = (&leases{r: r.runner}).write(group, false)
	for _, t := range group {
		held = append(held, t.held)
	}
	return held, err
}

// AbandonResult hands a result on for which no write slot is free, as the relay is abandoned. The channel is closed when its run is told.
func (r *Relay) AbandonResult() <-chan struct{} {
	r.runner = r.newRunner(context.Background(), context.Background())
	close(r.abandoned)
	told, l, x := make(chan struct{}), r.leases, &leasedRun{lease: lease{r: r.runner}}
	l.ended = func([]settled) { close(told) }
	for range singleWrites {
		l.writeSlots <- struct{}{}
	}
	go l.settle([]*transition{{row: &x.row, run: x, verdict: verdict{done: true}}}, l.writeSlots)
	return told
}
