package run

import (
	"database/sql/driver"
	"slices"
	"strings"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// finish_tasks finds a task by its place, if it is there still, and returns those whose leases are
// lost.
const FinishSQL = `/* outbox: complete leased tasks */
SELECT * FROM outbox.finish_tasks($1, $2, $3, $4)`

// nowhere is the place of a task whose place is not known. No row is there.
const nowhere = "(0,0)"

// finishing is the statement that deletes tasks that are done, sorted by id and each there once,
// and what takes its rows.
func finishing(group []*transition) (query string, args []any, said *finished) {
	said = &finished{ids: map[int64]struct{}{}}
	if slices.ContainsFunc(group, func(t *transition) bool { return t.keep > 0 }) {
		said.held = true
		return store.CompleteAndKeepSQL, keepArgs(group), said
	}
	ids, nth := make([]int64, len(group)), make([]int64, len(group))
	places := make([]string, len(group))
	var tokens []string // of claims; nth says which one is a task's
	for i, t := range group {
		at := slices.Index(tokens, t.token)
		if at < 0 {
			at, tokens = len(tokens), append(tokens, t.token)
		}
		if places[i] = t.row.Place; places[i] == "" {
			places[i] = nowhere
		}
		ids[i], nth[i] = t.row.ID, int64(at+1)
	}
	return FinishSQL, []any{pq.Array(ids), `{"` + strings.Join(places, `","`) + `"}`, "{" + strings.Join(tokens, ",") + "}", pq.Array(nth)}, said
}

// keepArgs are the arguments of the statement that writes tasks to the history, too.
func keepArgs(group []*transition) []any {
	ids, tokens := make([]int64, len(group)), make([]string, len(group))
	keep, discarded := make([]int64, len(group)), make([]string, len(group))
	for i, t := range group {
		ids[i], tokens[i], keep[i] = t.row.ID, t.token, t.keep.Microseconds()
		if t.change.Err != nil {
			discarded[i] = pgerr.Text(t.change.Err)
		}
	}
	return []any{pq.Array(ids), pq.Array(tokens), pq.Array(keep), pq.Array(discarded)}
}

// finished is what such a statement has said.
type finished struct {
	ids  map[int64]struct{}
	held bool // of these the leases were held; else they were lost
}

func (f *finished) add(values []driver.Value) error {
	f.ids[pg.Integer(values[0])] = struct{}{}
	return nil
}

func (f *finished) mark(group []*transition) {
	for _, t := range group {
		_, named := f.ids[t.row.ID]
		t.held = named == f.held
	}
}
