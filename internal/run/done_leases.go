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

const FinishSQL = `/* outbox: complete leased tasks */
SELECT * FROM outbox.finish_tasks($1, $2, $3, $4)`

// nowhere is the place of a task whose place is not known. No row is there.
const nowhere = "(0,0)"

// doneLeases are leased tasks that are done, sorted by id, for one statement that deletes them.
type doneLeases struct {
	ids     []int64
	places  []string
	tokens  []string // of claims
	nth     []int64  // of these, for each task
	keep    []int64  // µs; 0: not in the history
	errors  []*string
	keepAny bool
}

func (d *doneLeases) add(t *transition) {
	at := slices.Index(d.tokens, t.token)
	if at < 0 {
		at, d.tokens = len(d.tokens), append(d.tokens, t.token)
	}
	place := t.row.Place
	if place == "" {
		place = nowhere
	}
	d.ids, d.places, d.nth = append(d.ids, t.row.ID), append(d.places, place), append(d.nth, int64(at+1))
	if t.keep > 0 && !d.keepAny {
		d.keepAny, d.keep, d.errors = true, make([]int64, len(d.ids)-1), make([]*string, len(d.ids)-1)
	}
	if d.keepAny {
		var discarded *string
		if t.change.Err != nil {
			s := pgerr.Text(t.change.Err)
			discarded = &s
		}
		d.keep, d.errors = append(d.keep, t.keep.Microseconds()), append(d.errors, discarded)
	}
}

// finishing is the statement that deletes tasks that are done, sorted by id and each there once,
// and what takes its rows.
func finishing(group []*transition) (query string, args []any, said *finished) {
	var done doneLeases
	for _, t := range group {
		done.add(t)
	}
	query, args = done.statement()
	return query, args, &finished{ids: map[int64]struct{}{}, held: done.keepAny}
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

// statement is the one that deletes them. It returns those whose leases are lost, or, where it
// keeps some, those whose were not.
func (d *doneLeases) statement() (query string, args []any) {
	if !d.keepAny {
		return FinishSQL, []any{store.BigintArray(d.ids), `{"` + strings.Join(d.places, `","`) + `"}`, "{" + strings.Join(d.tokens, ",") + "}", store.BigintArray(d.nth)}
	}
	tokens := make([]string, len(d.nth))
	for i, n := range d.nth {
		tokens[i] = d.tokens[n-1]
	}
	return store.CompleteAndKeepSQL, []any{store.BigintArray(d.ids), pq.Array(tokens), store.BigintArray(d.keep), pq.Array(d.errors)}
}
