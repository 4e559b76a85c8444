package relay

// BeatSQL is the heartbeat's statement, for the tests of interleavings.
const BeatSQL = beatSQL

// EndTogether ends leases as done, each task with its token, in one group. It says which were held.
func (r *Relay) EndTogether(taskIDs []int64, tokens []string) (held []bool, err error) {
	r.conns = newConns(r.db)
	defer r.conns.release()
	var group []*transition
	for i, id := range taskIDs {
		group = append(group, &transition{row: &row{id: id}, token: tokens[i], done: true})
	}
	err = (&leases{r: r}).write(group)
	for _, t := range group {
		held = append(held, t.held)
	}
	return held, err
}
