package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/invariants"
)

// holder is a session that claims one task and ends the claim, with the relay's statements.
type holder struct {
	*actor
	task   int
	leased bool
	held   bool // it has claimed the task
	done   bool // and finished it
}

// holderEnds are the ways in which a claim ends: the task is done, waits as before, or waits for a retry.
var holderEnds = []string{"finishes", "gives back", "fails"}

func (h *holder) claims() step {
	return step{name: "claims", do: func() (int, error) {
		if h.leased {
			n, err := h.leases("TX", relayA, tokenA, 0)
			h.held = n == 1
			return 0, err
		}
		if err := h.begin(); err != nil {
			return 0, err
		}
		tasks, err := h.query(statements["claim one"], "TX", h.task)
		h.held = len(tasks) == 1
		return 0, err
	}}
}

// writtenBack is what a relay writes back of the task, in short.
const writtenBack = `INSERT INTO outbox.task (task_id, task_type, state, run_at, attempt, attempted_at, unique_key,
	ordering_key) OVERRIDING SYSTEM VALUE
	VALUES ($1, 'TX', 'scheduled', clock_timestamp(), 1, now(), $2, $3)`

func (h *holder) ends(how string, uniqueKey, orderingKey sql.NullString) step {
	return step{name: how, do: func() (n int, err error) {
		h.done = h.done || h.held && how == "finishes"
		if !h.leased {
			if h.held && how == "fails" {
				if _, err := h.exec(writtenBack, h.task, uniqueKey, orderingKey); err != nil {
					return 0, err
				}
			}
			if h.held && how != "gives back" {
				return 0, h.commit()
			}
			tx := h.tx
			h.tx = nil
			return 0, tx.Rollback()
		}
		if !h.held {
			return 0, nil
		}
		switch how {
		case "finishes":
			var lost []string
			lost, err = h.query(store.FinishSQL, pq.Array([]int{h.task}), pq.Array([]string{h.place}),
				pq.Array([]string{tokenA}), pq.Array([]int{1}))
			n = 1 - len(lost)
		case "gives back":
			n, err = h.exec(statements["return lease"], h.task, tokenA, "ready", 0, nil, nil, 0, orderingKey, nil)
		default:
			n, err = h.exec(statements["return lease"], h.task, tokenA, "scheduled", 1, "error", nil, 0, orderingKey, nil)
		}
		if err == nil && n != 1 {
			err = fmt.Errorf("the end of its lease changed %d rows", n)
		}
		return n, err
	}}
}

// hears are the two statements with which a relay removes tasks that were canceled and wait.
func hears(a *actor, task int) []step {
	asked := false
	return []step{
		{name: "a relay hears", do: func() (int, error) {
			found, err := a.query(statements["hear"], pq.Array([]int{}), pq.Array([]int{}), pq.Array([]string{}))
			asked = len(found) > 0
			return 0, err
		}},
		{name: "and removes", do: func() (int, error) {
			if !asked {
				return 0, nil
			}
			return a.exec(statements["remove canceled"], pq.Array([]int{task}))
		}},
	}
}

// A Cancel that was committed ends the task, and what it answered is so, whenever it comes between
// a claim, its end, and the hearing of
// a relay: nothing but a finished run outlives it. One that was rolled back does nothing.
func TestACancelEndsTheTaskInEveryOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	all := actors(t, db, 3)
	scenario{all, 2 * 2 * len(holderEnds), func(variant int) ([][]step, func() string) {
		db.Do(t, emptyAll)
		db.Do(t, dead(relayA, "1 hour"))
		h := &holder{actor: all[0], leased: variant%2 == 0, task: db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ('TX')
			RETURNING task_id`)}
		how, committed := holderEnds[variant/4], variant/2%2 == 0
		c, answer := all[1], outbox.CancelNotFound
		steps := [][]step{
			{h.claims(), h.ends(how, sql.NullString{}, sql.NullString{}), h.claims(),
				h.ends("finishes", sql.NullString{}, sql.NullString{})},
			{{name: "cancels", do: func() (n int, err error) {
				if err = c.begin(); err == nil {
					answer, err = outbox.Cancel(context.Background(), c.tx, int64(h.task))
				}
				return 0, err
			}}, {name: "which is committed: " + fmt.Sprint(committed), do: func() (int, error) {
				if committed {
					return 0, c.commit()
				}
				return 0, c.tx.Rollback()
			}}},
			hears(all[2], h.task),
		}
		return steps, func() string {
			c.tx = nil
			for range 2 { // the quiet after
				for _, s := range hears(all[2], h.task) {
					if _, err := s.do(); err != nil {
						t.Fatal(err)
					}
				}
			}
			left, asked := db.Int(t, `SELECT count(*) FROM outbox.task`), db.Int(t, `SELECT count(*) FROM outbox.cancel`)
			canceled := db.Int(t, `SELECT COALESCE(sum(tasks), 0) FROM outbox.counter_log WHERE kind = 'canceled'`)
			wantLeft, wantCanceled := 1, 0
			switch {
			case h.done:
				wantLeft = 0
			case committed:
				wantLeft, wantCanceled = 0, 1
			}
			if answer == outbox.CancelNotFound && !h.done || answer == outbox.CancelRemoved && committed && h.done {
				return fmt.Sprintf("Cancel answered %v, and the task is done: %v", answer, h.done)
			}
			if left != wantLeft || canceled != wantCanceled || asked != 0 || db.Int(t, invariants.Miscounted) != 0 {
				return fmt.Sprintf("Cancel answered %v; %d tasks and %d requests are left and %d counted as canceled, want %d, 0 and %d", answer, left, asked, canceled, wantLeft, wantCanceled)
			}
			return ""
		}
	}}.everyOrder(t, db)
}
