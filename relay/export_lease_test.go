package relay

import "github.com/txoutbox/outbox/internal/pg"

// EndTogether ends leases as done, each task with its token, in one group. It says which were held.
func (r *Relay) EndTogether(taskIDs []int64, tokens []string) (held []bool, err error) {
	r.conns = pg.NewPool(r.db)
	defer r.conns.Release()
	var group []*transition
	for i, id := range taskIDs {
		group = append(group, &transition{row: &row{id: id}, token: tokens[i], done: true})
	}
	err = (&leases{r: r}).write(group, false)
	for _, t := range group {
		held = append(held, t.held)
	}
	return held, err
}

// AbandonResult hands a result on for which no write slot is free, as the relay is abandoned. The channel is closed when its run is told.
func (r *Relay) AbandonResult() <-chan struct{} {
	r.abandoned = make(chan struct{})
	close(r.abandoned)
	told, l, x := make(chan struct{}), newLeases(r), &leasedRun{lease: lease{r: r}}
	l.ended = func([]*leasedRun) { close(told) }
	for range singleWrites {
		l.writeSlots <- struct{}{}
	}
	go l.settle([]*transition{{row: &x.row, run: x, done: true}}, l.writeSlots)
	return told
}
