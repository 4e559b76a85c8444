package deadletter_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/internal/needs"
)

type pageFunc func(context.Context, outbox.Querier, deadletter.Filter, deadletter.Cursor, int, ...deadletter.Option) (deadletter.Page, error)

var pageFuncs = map[string]pageFunc{"redrive": deadletter.RedrivePage, "purge": deadletter.PurgePage}

// A page takes the oldest that pass, as many as it is told to, from where the last one ended, and commits with its caller.
func TestPagesTakeTheOldestAndGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	for name, do := range pageFuncs {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			bury(t, db, "MAIL", "attempts", "boom", 1, 5, 60)
			bury(t, db, "PAY", "handler", "boom", 11, 5, 90)
			all := deadletter.Filter{DiedBefore: time.Now().Add(time.Hour)}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := do(t.Context(), tx, all, deadletter.Cursor{}, 0); err != nil || p.Count != 10 || !p.Last {
				t.Errorf("got %+v, %v, want 10 and that this is the last page", p, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			// From the oldest on: 11 to 15, then 1 to 5.
			var at deadletter.Cursor
			for i, c := range []struct {
				f     deadletter.Filter
				limit int
				want  string // the ids that are dead letters then
				last  bool
			}{
				{all, 2, "1,2,3,4,5,13,14,15", false},
				{deadletter.Filter{Reason: deadletter.Attempts}, 1, "2,3,4,5,13,14,15", false},
				{deadletter.Filter{Reason: deadletter.Handler}, 5, "2,3,4,5,13,14,15", true}, // they are before the place
				{deadletter.Filter{Type: "MAIL", Error: "boom"}, 4, "13,14,15", false},
				{all, 1000, "13,14,15", true},
			} {
				p, err := do(t.Context(), db, c.f, at, c.limit)
				if err != nil {
					t.Fatal(err)
				}
				var left string
				if err := db.QueryRow(`SELECT string_agg(task_id::text, ',' ORDER BY task_id) FROM outbox.dead_task`).Scan(&left); err != nil {
					t.Fatal(err)
				}
				if left != c.want || p.Last != c.last {
					t.Fatalf("page %d: %+v, %s are left, want %s and Last %t", i, p, left, c.want, c.last)
				}
				at = p.Next
			}
		})
	}
}

// What an error that few have costs is spread over pages: each looks at 10,000, and all of those that pass are taken, wherever they are.
func TestPagesOfARareErrorEndAndTakeAll(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for name, do := range pageFuncs {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			bury(t, db, "MAIL", "attempts", "boom", 1, 25_000, 60_000)
			exec(t, db, `UPDATE outbox.dead_task SET last_error = 'rare' WHERE task_id IN (1, 10000, 10001, 15000, 15001, 25000)`)
			f := deadletter.Filter{Error: "rare", DiedBefore: time.Now()}
			var counts []int64
			var n, pages int64
			for p := (deadletter.Page{}); !p.Last; pages++ {
				var err error
				if p, err = do(t.Context(), db, f, p.Next, 2); err != nil || pages > 20 {
					t.Fatalf("%v, after %v", err, counts)
				}
				n += p.Count
				counts = append(counts, p.Count)
			}
			if left := number(t, db, `SELECT count(*) FROM outbox.dead_task WHERE last_error = 'rare'`); n != 6 || left != 0 || pages > 6 {
				t.Errorf("pages have %v, %d are left, want 6 in few pages", counts, left)
			}
			if left := number(t, db, `SELECT count(*) FROM outbox.dead_task`); left != 25_000-6 {
				t.Errorf("%d are left", left)
			}
			none := deadletter.Filter{Type: "MAIL", Reason: deadletter.Committed}
			p, err := do(t.Context(), db, none, deadletter.Cursor{}, 0)
			if err != nil || p.Count != 0 || p.Last || p.Next.TaskID != 10_003 {
				t.Errorf("a page of none ends at %+v, %v, want the 10,000th letter", p, err)
			}
		})
	}
}

func TestPagesRefuseBadArguments(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", "postgres://127.0.0.1:1/nowhere?sslmode=disable") // any SQL would fail otherwise
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	some := deadletter.Filter{Type: "X"}
	for name, do := range pageFuncs {
		for what, c := range map[string]struct {
			f     deadletter.Filter
			after deadletter.Cursor
			limit int
			opts  []deadletter.Option
		}{
			"limit -1": {f: some, limit: -1}, "limit 1001": {f: some, limit: 1001}, "filter": {f: deadletter.Filter{Type: "\x00"}},
			"error": {f: deadletter.Filter{Error: "\xff"}}, "cursor": {f: some, after: deadletter.Cursor{DiedAt: time.Unix(1<<50, 0), TaskID: 1}},
			"schema": {f: some, opts: []deadletter.Option{deadletter.Schema("X")}},
		} {
			if p, err := do(t.Context(), db, c.f, c.after, c.limit, c.opts...); !errors.Is(err, deadletter.ErrInvalid) || p != (deadletter.Page{}) {
				t.Errorf("%s, %s: got %+v, %v, want ErrInvalid", name, what, p, err)
			}
		}
	}
	if _, err := deadletter.PurgePage(t.Context(), db, deadletter.Filter{}, deadletter.Cursor{}, 0); !errors.Is(err, deadletter.ErrInvalid) {
		t.Errorf("the zero Filter: got %v, want ErrInvalid", err)
	}
}
