package run

// Underway are the tasks whose handlers run, by type. Of a batch or a group all count.
func (l *Leases) Underway() map[string][]int64 {
	out := map[string][]int64{}
	for _, one := range l.held() {
		out[one.row.TaskType] = append(out[one.row.TaskType], one.row.ID)
	}
	for id, c := range l.r.openClaims() {
		taskType := c.rows[0].TaskType
		out[taskType] = append(out[taskType], id)
	}
	return out
}
