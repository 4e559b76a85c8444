package store

import (
	"testing"
	"time"
)

// I4: of a task that its relay has lost and claimed again, two runs may end in one group. The token
// decides.
func TestOfTwoRunsOfATaskInOneGroupTheHolderEndsIt(t *testing.T) {
	t.Parallel()
	const held, stale = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-00000000000a"
	for name, c := range map[string]struct {
		tokens []string
		keep   time.Duration
	}{
		"first":             {[]string{held, stale}, 0},
		"last":              {[]string{stale, held}, 0},
		"first, in history": {[]string{held, stale}, time.Hour},
		"last, in history":  {[]string{stale, held}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, db := newStore(t)
			if _, err := db.Exec(`INSERT INTO outbox.task (task_type, payload) SELECT 'LEASED', '{}' FROM generate_series(1, 3);
				UPDATE outbox.task SET state = 'leased', relay_id = '` + held + `', lease_token = '` + held + `'`); err != nil {
				t.Fatal(err)
			}
			var group []*LeaseEnd
			for i, id := range []int64{3, 3, 2} {
				group = append(group, &LeaseEnd{Row: &Row{ID: id}, Token: append(c.tokens, stale)[i], Done: true, Keep: c.keep})
			}
			if err := s.EndLeases(group); err != nil {
				t.Fatal(err)
			}
			if group[0].Held != (c.tokens[0] == held) || group[1].Held != (c.tokens[1] == held) || group[2].Held {
				t.Errorf("held: %v, %v, %v", group[0].Held, group[1].Held, group[2].Held)
			}
			left := 0
			if err := db.QueryRow(`SELECT count(*) FROM outbox.task WHERE state = 'leased'`).Scan(&left); err != nil || left != 2 {
				t.Errorf("%d tasks are left, want 2 (%v)", left, err)
			}
			kept := 0
			err := db.QueryRow(`SELECT count(*) FROM outbox.done_task`).Scan(&kept)
			if err != nil || kept != int(c.keep/time.Hour) {
				t.Errorf("%d tasks are in the history (%v)", kept, err)
			}
		})
	}
}
