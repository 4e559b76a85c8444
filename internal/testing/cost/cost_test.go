package cost_test

import (
	"database/sql"
	"flag"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

var propose = flag.Bool("bounds", false, "print the bounds that fit what is measured, and check none")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(pgtest.Main(m))
}

// I8, and the costs of all other calls.
func TestCosts(t *testing.T) {
	needs.Timing(t) // heartbeats come by the clock, so a busy machine has more of them to each task
	s := newServer(t)
	t.Run("the figures of known statements", func(t *testing.T) { s.knows(t) })
	measured, proposed := header(), ""
	for _, k := range kinds {
		bound, ok := bounds[k.name]
		t.Run(k.name, func(t *testing.T) {
			db := s.subject(t)
			k.prepare(t, db, k.warm)()
			got := s.cost(t, db, k.tasks, k.prepare(t, db, k.tasks))
			// Heartbeats come by the clock, so on a busy machine there is more of them to each
			// task.
			for range 2 {
				if !ok || len(got.over(bound)) == 0 {
					break
				}
				got = s.cost(t, db, k.tasks, k.prepare(t, db, k.tasks))
			}
			measured += got.line(k.name)
			proposed += got.bounds(k.spare).literal(k.name)
			if *propose {
				return
			}
			if !ok {
				t.Fatal("it has no row in the table of bounds")
			}
			for _, fault := range got.over(bound) {
				t.Error(fault)
			}
		})
	}
	t.Logf("measured:\n%s", measured)
	if *propose {
		t.Logf("bounds:\n%s", proposed)
	}
}

// knows checks the measuring itself.
func (s *server) knows(t *testing.T) {
	db := s.subject(t)
	const n = 10
	got := s.cost(t, db, n, func() {
		for range n {
			inTx(t, db, func(tx *sql.Tx) error {
				var one int
				if err := tx.QueryRowContext(t.Context(), `/* outbox: poll */ SELECT 1 /* outbox.poll( */`).Scan(&one); err != nil {
					return err
				}
				if _, err := tx.ExecContext(t.Context(), `DO $$ BEGIN PERFORM 1 FROM effect LIMIT 1; END $$`); err != nil {
					return err
				}
				_, err := tx.ExecContext(t.Context(), `INSERT INTO effect (task_id) SELECT n FROM generate_series(1, $1::int) n`,
					100)
				return err
			})
		}
	})
	// A statement with arguments has two round trips, as it is prepared first.
	want := figures{polls: 1, calls: 4, trips: 5, statements: 4, inner: 1, rows: 100, buffers: 105, wal: 6400}
	for i, name := range names[:allocs] {
		few, many := want[i], want[i]
		if name == "buffers" || name == "wal" { // by the server's version
			few, many = few*0.8, many*1.2
		}
		if f := got[i]; f < few || f > many {
			t.Errorf("%s: %v, want %v", name, f, want[i])
		}
	}
}
