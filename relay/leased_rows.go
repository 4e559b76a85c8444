package relay

import (
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/txoutbox/outbox/handlers"
)

const (
	leasedBlock = 8        // leased tasks that are made in one piece of memory, which lives as long as one of them runs
	sharedText  = 64 << 10 // how large a claim's text may be for its tasks to keep it for their payloads
)

// leasedRows are the tasks in the text of lease_tasks, in the order of claiming. One text costs a
// driver much less than as many rows.
func leasedRows(tasks string, h *handlers.Handler, limit int) (out []*leasedRun, err error) {
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
		t.taskType, t.max = h.Type, h.MaxAttempts
		if err := t.fromLine(line); err != nil {
			return nil, err
		}
		out, block = append(out, &block[0]), block[1:]
	}
	slices.SortFunc(out, func(a, b *leasedRun) int { return a.row.compare(&b.row) })
	return out, tooMany(len(out), limit)
}

// fromLine takes a line of lease_tasks.
func (r *row) fromLine(line string) error {
	var columns [9]string
	rest := line
	for i := range columns {
		columns[i], rest, _ = strings.Cut(rest, "\t")
	}
	var priority, attempt int64
	for _, c := range []struct {
		text string
		into *int64
	}{{columns[0], &r.id}, {columns[2], &priority}, {columns[3], &attempt}, {columns[4], &r.runAt}, {columns[5], &r.createdAt}} {
		if c.text == "" {
			continue
		}
		n, err := strconv.ParseInt(c.text, 10, 64)
		if err != nil {
			return fmt.Errorf("relay: a leased task: %w", err)
		}
		*c.into = n
	}
	if columns[5] == "" {
		r.createdAt = r.runAt
	}
	r.place, r.priority, r.attempt, r.payload = columns[1], int(priority), int(attempt), columns[7]
	if columns[6] != "" {
		r.lostBy = sql.NullString{String: columns[6], Valid: true}
	}
	return r.setRest(columns[8])
}

func rowsIn(runs []*leasedRun) []*row {
	out := make([]*row, len(runs))
	for i, x := range runs {
		out[i] = &x.row
	}
	return out
}

// bigints are an array as a literal.
func bigints(ids []int64) string {
	b := make([]byte, 0, 2+12*len(ids))
	b = append(b, '{')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(append(b, '}'))
}
