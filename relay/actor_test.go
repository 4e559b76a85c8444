package relay_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// actor is a session that takes steps, in order. A step that waits for a lock ends when it gets it.
type actor struct {
	conn   *sql.Conn
	pid    int
	tx     *sql.Tx
	queued []step
	busy   chan result // of the step under way; nil if there is none
	done   func(rows int)
	place  string // where its lease was, as its claim said
}

// step is what an actor does, which returns how many rows it changed, and what the model makes of it.
type step struct {
	name string
	do   func() (rows int, err error)
	done func(rows int) // may be nil
}

type result struct {
	rows int
	err  error
}

func newActor(t *testing.T, db *database) *actor {
	t.Helper()
	conn, err := direct(t, db.URL).Conn(t.Context())
	must(err)
	a := &actor{conn: conn, place: "(0,0)"}
	t.Cleanup(func() {
		if a.tx != nil {
			_ = a.tx.Rollback()
		}
		conn.Close()
	})
	must(conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&a.pid))
	return a
}

// session is the actor's transaction, or its connection.
func (a *actor) session() outbox.Querier {
	if a.tx != nil {
		return a.tx
	}
	return a.conn
}

// exec runs one of the relay's statements and returns how many rows it changed.
func (a *actor) exec(query string, args ...any) (int, error) {
	r, err := a.session().ExecContext(context.Background(), query, args...)
	if err != nil {
		return 0, err
	}
	n, err := r.RowsAffected()
	return int(n), err
}

// query runs a statement of the relay's that calls a function, and returns its first column, of which NULL is nothing.
func (a *actor) query(query string, args ...any) (out []string, err error) {
	rows, err := a.session().QueryContext(context.Background(), query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var one sql.NullString
		into := slices.Repeat([]any{new(any)}, len(columns))
		into[0] = &one
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		if one.Valid {
			out = append(out, one.String)
		}
	}
	return out, rows.Err()
}

func (a *actor) begin() (err error) {
	a.tx, err = a.conn.BeginTx(context.Background(), nil)
	return err
}

func (a *actor) commit() error {
	tx := a.tx
	a.tx = nil
	return tx.Commit()
}

// start begins the step and returns when it has ended or waits for another actor's lock:
// autovacuum's, when it shortens a table, are soon gone.
func (a *actor) start(t *testing.T, watch *database, s step) {
	a.queued = append(a.queued, s)
	a.proceed(t, watch)
}

func (a *actor) proceed(t *testing.T, watch *database) {
	for {
		if a.busy == nil {
			if len(a.queued) == 0 {
				return
			}
			next := a.queued[0]
			a.queued = a.queued[1:]
			busy := make(chan result, 1)
			a.busy, a.done = busy, next.done
			go func() {
				n, err := next.do()
				busy <- result{n, err}
			}()
		}
		select {
		case r := <-a.busy:
			a.busy = nil
			if r.err != nil {
				t.Fatal(r.err)
			}
			if a.done != nil {
				a.done(r.rows)
			}
			continue
		case <-time.After(3 * time.Millisecond): // longer than most steps take
		}
		if watch.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
			AND pid = ANY (pg_blocking_pids($1))`, a.pid) > 0 {
			return
		}
	}
}

// orders are all orders of the steps of actors that take so many each: whose step is next.
func orders(counts ...int) (all [][]int) {
	left := 0
	for i, n := range counts {
		if n == 0 {
			continue
		}
		left++
		counts[i]--
		for _, rest := range orders(counts...) {
			all = append(all, append([]int{i}, rest...))
		}
		counts[i]++
	}
	if left == 0 {
		return [][]int{nil}
	}
	return all
}

// play lets the actors take their steps in the order given. A step that waits for a lock goes on as
// soon as it has it, and the actor's next
// ones wait for it. It returns what was done.
func play(t *testing.T, db *database, actors []*actor, steps [][]step, order []int) string {
	t.Helper()
	var trace []string
	taken := make([]int, len(actors))
	for _, i := range order {
		s := steps[i][taken[i]]
		taken[i]++
		trace = append(trace, s.name)
		actors[i].start(t, db, s)
		for _, a := range actors {
			a.proceed(t, db)
		}
	}
	for _, a := range actors {
		if a.busy != nil {
			t.Fatalf("%s: a step still waits", strings.Join(trace, ", "))
		}
	}
	return strings.Join(trace, ", ")
}

// scenario is what actors do to each other, in several variants.
type scenario struct {
	actors   []*actor
	variants int
	// begin makes the tables ready and returns the actors' steps, of which there are as many in each
	// variant, and what must be true after them.
	begin func(variant int) (steps [][]step, end func() string)
}

// ordersOfAShortRun are tried in an ordinary run, at random; with OUTBOX_TEST_LONG=1 it is all if
// they are not more than ordersOfALongRun.
const ordersOfAShortRun, ordersOfALongRun = 25, 6000

// everyOrder plays all orders of all variants, or as many as there is time for.
func (s scenario) everyOrder(t *testing.T, db *database) {
	t.Helper()
	steps, _ := s.begin(0)
	counts := make([]int, len(steps))
	for i := range steps {
		counts[i] = len(steps[i])
	}
	all := orders(counts...)
	total, most := len(all)*s.variants, ordersOfAShortRun
	if relaytest.Long {
		most = ordersOfALongRun
	}
	seed := rand.Uint64()
	chosen := rand.New(rand.NewPCG(seed, 0)).Perm(total)
	if total > most {
		chosen = chosen[:most]
		t.Logf("%d of %d orders, seed %d", most, total, seed)
	}
	for _, n := range chosen {
		variant := n % s.variants
		steps, end := s.begin(variant)
		trace := play(t, db, s.actors, steps, all[n/s.variants])
		if wrong := end(); wrong != "" {
			t.Fatalf("variant %d: %s: %s\n%s", variant, trace, wrong, db.Dump(t))
		}
	}
}

// actors are n sessions.
func actors(t *testing.T, db *database, n int) (out []*actor) {
	for range n {
		out = append(out, newActor(t, db))
	}
	return out
}
