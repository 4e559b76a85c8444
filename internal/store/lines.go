package store

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
)

// FromLine takes a line of lease_tasks.
func (r *Row) FromLine(line string) error {
	var columns [9]string
	rest := line
	for i := range columns {
		columns[i], rest, _ = strings.Cut(rest, "\t")
	}
	var priority, attempt int64
	for _, c := range []struct {
		text string
		into *int64
	}{{columns[0], &r.ID}, {columns[2], &priority}, {columns[3], &attempt}, {columns[4], &r.RunAt}, {columns[5], &r.createdAt}} {
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
		r.createdAt = r.RunAt
	}
	r.Place, r.Priority, r.Attempt, r.Payload = columns[1], int(priority), int(attempt), columns[7]
	if columns[6] != "" {
		r.LostBy = sql.NullString{String: columns[6], Valid: true}
	}
	return r.setRest(columns[8])
}

// BigintArray is an array of bigints as a literal.
func BigintArray(ids []int64) string {
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
