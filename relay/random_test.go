package relay_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

// starts are the tasks that handlers began, in their order, up to a number.
type starts struct {
	mu    sync.Mutex
	most  int
	ids   []int64
	tasks []outbox.Task[payload]
	full  chan struct{}
}

func (s *starts) begin(_ context.Context, task *outbox.Task[payload]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ids) < s.most {
		s.ids, s.tasks = append(s.ids, task.ID), append(s.tasks, *task)
		if len(s.ids) == s.most {
			close(s.full)
		}
	}
	return nil
}

// begun runs a relay until n tasks of the kind have begun.
func begun(t testing.TB, db *database, kind string, n int, config relay.Config) *starts {
	t.Helper()
	s := &starts{most: n, full: make(chan struct{})}
	reg := handlers.New()
	each(reg, kind, s.begin)
	r := run(t, db, reg, config)
	<-s.full
	r.Stop()
	return s
}

// Each tenth of the range of ids gets its share of the claims; the bounds are six standard deviations
// away. A claim looks near its pivot first, and further on where the type has few of the ids.
func TestRandomOrderClaimsFromEverywhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind                       string
		apart, workers             int // ids
		tasks, claims, least, most int // of a tenth
	}{
		{"TX", 1, 2, 8000, 1000, 33, 157},
		{"LEASED", 1, 2, 8000, 1000, 33, 157},
		{"TX", 1000, 2, 4000, 400, 2, 70},
	} {
		t.Run(fmt.Sprintf("%s, %d apart", c.kind, c.apart), func(t *testing.T) {
			if c.apart == 1 {
				needs.Long(t)
			}
			db := newDatabase(t)
			db.sparse(t, c.kind, c.apart, c.tasks)
			s := begun(t, db, c.kind, c.claims, relay.Config{Order: relay.OrderRandom, Workers: c.workers})
			var tenths [10]int
			for _, id := range s.ids {
				tenths[(int(id)/c.apart-1)*10/c.tasks]++
			}
			tenths[0] -= c.claims / 10 // they went by due time
			if slices.Min(tenths[:]) < c.least || slices.Max(tenths[:]) > c.most || slices.IsSorted(s.ids) {
				t.Errorf("the tenths of the ids have %v of %d claims, want %d to %d", tenths, c.claims, c.least, c.most)
			}
		})
	}
}

// sparse adds n tasks whose ids are so far apart.
func (db *database) sparse(t testing.TB, kind string, apart, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE SELECT $1 * n, $2
		FROM generate_series(1, $3::int) n`, apart, kind, n)
	db.Do(t, `VACUUM ANALYZE outbox.task`)
}
