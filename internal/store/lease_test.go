package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
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

// Task n has the id n. A request to cancel is there for each but the last, and for a task that is gone.
const canceledTasks = `
	INSERT INTO outbox.task (task_type) SELECT 'T' FROM generate_series(1, 4);
	UPDATE outbox.task SET state = 'leased', relay_id = '` + aToken + `', lease_token = '` + aToken + `' WHERE task_id = 2;
	INSERT INTO outbox.cancel (task_id) VALUES (1), (2), (3), (99);
	INSERT INTO outbox.running (task_id, token, relay_id)
	SELECT n, '` + aToken + `', '` + aToken + `' FROM generate_series(1, 4) n`

func TestRemoveCanceledRemovesTasksThatNobodyHolds(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	if _, err := db.Exec(canceledTasks); err != nil {
		t.Fatal(err)
	}
	held, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback() }()
	if _, err := held.Exec(`SELECT FROM outbox.task WHERE task_id = 3 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SET LOCAL lock_timeout = '5s'`); err != nil {
		t.Fatal(err)
	}
	n, err := s.RemoveCanceled(t.Context(), tx, []int64{1, 2, 3, 99})
	if err != nil || n != 2 {
		t.Errorf("%d requests are answered, want those of tasks 1 and 99; error %v", n, err)
	}
	const left = `SELECT concat((SELECT array_agg(task_id ORDER BY task_id) FROM outbox.task),
		(SELECT array_agg(task_id ORDER BY task_id) FROM outbox.cancel),
		(SELECT array_agg(task_id ORDER BY task_id) FROM outbox.running),
		(SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'canceled'))`
	var got string
	if err := tx.QueryRow(left).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "{2,3,4}{2,3}{2,3,4}1"; got != want {
		t.Errorf("tasks, requests, runs and counts are %s, want %s", got, want)
	}
}

func TestHearTellsWhatBecameOfRunningTasks(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	if _, err := db.Exec(canceledTasks); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const other = "00000000-0000-4000-8000-000000000002"
	held, stolen, gone := Lease{2, aToken}, Lease{2, other}, Lease{99, aToken}
	h, err := s.Hear(t.Context(), conn, []int64{1, 4}, []Lease{held, stolen, gone})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(h.Asked)
	want := Heard{[]int64{1, 3, 99}, map[int64]bool{1: true, 2: true, 99: true}, map[Lease]bool{stolen: true, gone: true}}
	if fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("heard %v, want %v", h, want)
	}
}

func TestACanceledTaskLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	if _, err := db.Exec(canceledTasks); err != nil {
		t.Fatal(err)
	}
	if err := s.EndCounted(context.Background(), db, &Row{ID: 2, TaskType: "T"}, "canceled"); err != nil {
		t.Fatal(err)
	}
	var requests, runs, counted sql.NullInt64
	const left = `SELECT (SELECT count(*) FROM outbox.cancel), (SELECT count(*) FROM outbox.running),
		(SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'canceled')`
	if err := db.QueryRow(left).Scan(&requests, &runs, &counted); err != nil {
		t.Fatal(err)
	}
	if requests.Int64 != 3 || runs.Int64 != 3 || counted.Int64 != 1 {
		t.Errorf("%d requests, %d runs, %d counted, want 3, 3, 1", requests.Int64, runs.Int64, counted.Int64)
	}
}

const (
	otherToken = "00000000-0000-4000-8000-00000000000b"
	deadRelay  = "00000000-0000-4000-8000-00000000000d"
)

// onConn calls f with a connection of its own.
func onConn(t *testing.T, db *sql.DB, f func(ctx context.Context, conn *sql.Conn)) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f(t.Context(), conn)
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, db *sql.DB, query string, args ...any) (s string) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// A lease is named by its task and its token: of the tasks of a claim, which has one token, some
// may be held.
func TestOtherLeasesAreThoseOfThisRelayThatItDoesNotHold(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	exec(t, db, `INSERT INTO outbox.task (task_type) SELECT 'T' FROM generate_series(1, 6)`)
	exec(t, db, `UPDATE outbox.task SET state = 'leased', relay_id = CASE task_id WHEN 5 THEN $3 ELSE $1 END::uuid,
		lease_token = CASE WHEN task_id = 3 THEN $4 ELSE $2 END::uuid WHERE task_id < 6`,
		s.RelayID, aToken, deadRelay, otherToken)
	onConn(t, db, func(ctx context.Context, conn *sql.Conn) {
		got, err := s.OtherLeases(ctx, conn, []Lease{{1, aToken}, {2, otherToken}, {3, otherToken}})
		if want := []Lease{{2, aToken}, {4, aToken}}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("other leases are %v, want %v; error %v", got, want, err)
		}
	})
}

// A freed task is as before its claim. Only the token says whether a lease is still the one that
// was compared.
func TestAFreedLeaseIsAsBeforeItsClaim(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	lost := `[{"event": "failed", "attempt": 1}, {"event": "lost", "attempt": 2, "relay": "` + deadRelay + `"}]`
	cases := []struct{ name, attempt, token, timeline, want string }{
		{"its first run", "1", aToken, "", "ready 0 "},
		{"a later run", "3", aToken, "", "ready 2 "},
		{"a suspect whose attempt is not counted yet", "2", aToken, lost, "ready 2 " + deadRelay},
		{"a suspect whose attempt is counted", "3", aToken, lost, "ready 2 "},
		{"claimed anew", "1", otherToken, "", "leased 1 " + s.RelayID},
		{"its result is being written", "1", aToken, "", "leased 1 " + s.RelayID},
	}
	var leases []Lease
	for i, c := range cases {
		exec(t, db, `INSERT INTO outbox.task (task_type) VALUES ('T')`)
		exec(t, db, `UPDATE outbox.task SET state = 'leased', attempt = $2, relay_id = $3, lease_token = $4, leased_until = now(),
			timeline = NULLIF($5, '')::jsonb WHERE task_id = $1`, i+1, c.attempt, s.RelayID, c.token, c.timeline)
		leases = append(leases, Lease{int64(i + 1), aToken})
	}
	held, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback() }()
	if _, err := held.Exec(`SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE`, len(cases)); err != nil {
		t.Fatal(err)
	}
	onConn(t, db, func(ctx context.Context, conn *sql.Conn) {
		if freed, err := s.FreeLeases(ctx, conn, leases); err != nil || len(freed) != len(cases)-2 {
			t.Errorf("freed %v, want %d; error %v", freed, len(cases)-2, err)
		}
	})
	for i, c := range cases {
		got := text(t, db, `SELECT concat_ws(' ', state, attempt, COALESCE(relay_id::text, '')) FROM outbox.task WHERE task_id = $1`, i+1)
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	const wrong = `SELECT count(*) FROM outbox.task WHERE (state = 'leased') <> (lease_token IS NOT NULL)
		OR (state = 'leased') <> (leased_until IS NOT NULL)`
	if got := text(t, db, wrong); got != "0" {
		t.Errorf("%s tasks are half leased", got)
	}
}

// Rows of the journal that stay: of runs that go on, that lost their connection, whose note is
// still to be written, and of other relays.
func TestTheJournalForgetsRowsOfThisRelayWhoseRunsHaveEnded(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	j := &Journal{store: s, open: map[string]struct{}{}, poke: make(chan struct{}, 1)}
	token := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-0000000000%02d", n) }
	exec(t, db, `INSERT INTO outbox.running (task_id, token, relay_id, lost_connection)
		SELECT n, ('00000000-0000-4000-8000-0000000000' || lpad(n::text, 2, '0'))::uuid,
		       CASE n WHEN 7 THEN $2 ELSE $1 END::uuid, n = 6 FROM generate_series(1, 7) n`, s.RelayID, deadRelay)
	exec(t, db, `UPDATE outbox.running SET task_ids = '{2, 20}', first_id = 2, last_id = 20 WHERE task_id = 2`)
	j.open[token(3)] = struct{}{}
	j.MarkLost(&Runs{IDs: []int64{4}, Token: token(4)})
	j.ForgetRuns(&Runs{IDs: []int64{5}, Token: token(5)})
	onConn(t, db, func(ctx context.Context, conn *sql.Conn) {
		n, err := j.ForgetLeftOver(ctx, conn)
		if left := text(t, db, `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.running`); err != nil ||
			n != 2 || strings.TrimSpace(left) != "3 4 5 6 7" {
			t.Errorf("%d forgotten, and the rows of tasks %s are left, want those of 3 to 7; error %v", n, left, err)
		}
	})
}
