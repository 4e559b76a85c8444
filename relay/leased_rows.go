package relay

import (
	"slices"
	"strings"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

const (
	leasedBlock = 8        // leased tasks that are made in one piece of memory, which lives as long as one of them runs
	sharedText  = 64 << 10 // how large a claim's text may be for its tasks to keep it for their payloads
)

// leasedRows are the tasks in the text of lease_tasks, in the order of claiming. One text costs a
// driver much less than as many rows.
func leasedRows(tasks string, h *handler.Handler, limit int) (out []*leasedRun, err error) {
	if tasks == "" {
		return nil, nil
	}
	shared := len(tasks) <= sharedText
	left := strings.Count(tasks, "\n") + 1
	out = make([]*leasedRun, 0, left)
	var block []leasedRun
	for line := range strings.SplitSeq(tasks, "\n") {
		if len(block) == 0 {
			block = make([]leasedRun, min(left, leasedBlock))
		}
		left--
		if !shared {
			line = strings.Clone(line)
		}
		t := &block[0].row
		t.TaskType, t.Max = h.Type, h.MaxAttempts
		if err := t.FromLine(line); err != nil {
			return nil, err
		}
		out, block = append(out, &block[0]), block[1:]
	}
	slices.SortFunc(out, func(a, b *leasedRun) int { return a.row.Compare(&b.row) })
	return out, store.TooMany(len(out), limit)
}

func rowsIn(runs []*leasedRun) []*store.Row {
	out := make([]*store.Row, len(runs))
	for i, x := range runs {
		out[i] = &x.row
	}
	return out
}

func starters(runs []*leasedRun) []starter {
	out := make([]starter, len(runs))
	for i, x := range runs {
		out[i] = x
	}
	return out
}
