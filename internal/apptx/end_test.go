package apptx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"testing"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func migrate(url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(context.Background(), db); err != nil {
		return err
	}
	_, err = db.Exec(`CREATE TABLE work (id int PRIMARY KEY, other int REFERENCES work DEFERRABLE INITIALLY DEFERRED)`)
	return err
}

// Each end has one name, and commits the work of the app's code only if it is Committed and kept, or
// if the code itself committed.
func TestEachEndOfATransactionHasItsName(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", pgtest.Prepared(t, migrate))
	if err != nil {
		t.Fatal(err)
	}
	pool := pg.NewPool(db)
	t.Cleanup(func() { pool.Close(); db.Close() })
	s := &store.Store{Schema: "outbox", RelayID: store.NewUUID(), Conns: pool, Identity: &store.Identity{}}
	failed := errors.New("failed")
	const write = `INSERT INTO work VALUES (1)`
	for name, c := range map[string]struct {
		code    []string
		failure error
		plan    Action // after a failure
		how     How
		commits bool // the work
		fails   bool // the end has a failure
	}{
		"kept":                  {[]string{write}, nil, Undo, Committed, true, false},
		"undone":                {[]string{write}, failed, Undo, Committed, false, true},
		"rolled back":           {[]string{write}, failed, Back, RolledBack, false, true},
		"aborted":               {[]string{write}, failed, Abort, RolledBack, false, true},
		"refused by constraint": {[]string{`INSERT INTO work VALUES (1, 2)`}, nil, Undo, Committed, false, true},
		"failed unseen":         {[]string{write, `SELECT 1 / 0`}, nil, Undo, Committed, false, true},
		"committed by the code": {[]string{write, `COMMIT`}, nil, Undo, EndedByCode, true, false},
		"committed, and the savepoint set again": {
			[]string{write, `COMMIT; BEGIN; SAVEPOINT ` + Savepoint + `; INSERT INTO work VALUES (2)`}, nil, Undo, EndedByCode, true, false},
		"ended by the code": {[]string{write, `ROLLBACK`}, nil, Undo, EndedByCode, false, true},
		"connection lost":   {[]string{write, `SELECT pg_terminate_backend(pg_backend_pid())`}, nil, Undo, Lost, false, true},
	} {
		tx, err := Begin(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Take(func(ctx context.Context, c pg.Exclusive) (xid string, err error) {
			err = c.Together(ctx, "", `SELECT pg_current_xact_id()::text`, nil, "SAVEPOINT "+Savepoint, func(v []driver.Value) error {
				xid = pg.Text(v[0])
				return nil
			})
			return xid, err
		}); err != nil {
			t.Fatal(err)
		}
		for _, statement := range c.code {
			_, _ = tx.SQL().Exec(statement)
		}
		end := tx.End(c.failure, func(failure error) Plan {
			if failure == nil {
				return Plan{Action: Keep}
			}
			return Plan{Action: c.plan, Failure: failure}
		})
		if end.How != c.how || (end.Failure != nil) != c.fails {
			t.Errorf("%s: end %d with failure %v, want %d (%v)", name, end.How, end.Failure, c.how, end.Err)
		}
		rows := 0
		if err := db.QueryRow(`WITH gone AS (DELETE FROM work RETURNING 1) SELECT count(*) FROM gone`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if (rows == 1) != c.commits || end.How == EndedByCode && end.Committed != c.commits {
			t.Errorf("%s: %d rows of the work, want them: %v", name, rows, c.commits)
		}
	}
}

// A database that failed, and a connection that broke, count no attempt; a handler that used more than its
// time or its own context did it itself. A removal that the handler committed is recorded, drained or not.
func TestWhatFollowsTheEndOfAnAttempt(t *testing.T) {
	t.Parallel()
	keep, undo := Ended{How: Failed, Plan: Plan{Action: Keep}}, Ended{How: Failed, Plan: Plan{Action: Undo}}
	code, committed := Ended{How: EndedByCode}, Ended{How: EndedByCode, Committed: true}
	drained, canceled := call.Result{Drained: true}, call.Result{Canceled: true}
	for _, c := range []struct {
		name string
		end  Ended
		out  call.Result
		want Sequel
	}{
		{"committed", Ended{How: Committed}, call.Result{}, Tell},
		{"committed, drained", Ended{How: Committed}, drained, Tell},
		{"committed, canceled", Ended{How: Committed}, canceled, Tell},
		{"no answer to COMMIT", Ended{How: Unknown}, call.Result{}, LeaveAsFound},
		{"no answer, drained", Ended{How: Unknown}, drained, LeaveAsFound},
		{"no answer, canceled", Ended{How: Unknown}, canceled, LeaveAsFound},
		{"results not written", keep, call.Result{}, LeaveAsFound},
		{"results not written, drained", keep, drained, LeaveAsFound},
		{"failure not written", undo, call.Result{}, RecordApart},
		{"failure not written, drained", undo, drained, GiveBack},
		{"failure not written, canceled", undo, canceled, RemoveCanceled},
		{"refused", Ended{How: Refused}, call.Result{}, RecordApart},
		{"refused, drained", Ended{How: Refused}, drained, GiveBack},
		{"refused, canceled", Ended{How: Refused}, canceled, RemoveCanceled},
		{"rolled back by the code", code, call.Result{}, SeeCommitted},
		{"rolled back by the code, drained", code, drained, GiveBack},
		{"rolled back by the code, canceled", code, canceled, SeeCommitted},
		{"committed by the code", committed, call.Result{}, SeeCommitted},
		{"committed by the code, drained", committed, drained, SeeCommitted},
		{"perhaps committed by the code", Ended{How: EndedByCode, Err: driver.ErrBadConn}, call.Result{}, SeeCommitted},
		{"the connection broke", Ended{How: Lost}, call.Result{Err: driver.ErrBadConn}, NoteLostConn},
		{"broke after the time", Ended{How: Lost}, call.Result{Overran: true}, RecordApart},
		{"broke by its own context", Ended{How: Lost}, call.Result{Err: context.DeadlineExceeded}, RecordApart},
		{"broke, canceled", Ended{How: Lost}, canceled, RemoveCanceled},
		{"broke, drained and canceled", Ended{How: Lost}, call.Result{Drained: true, Canceled: true}, GiveBack},
	} {
		if got := c.end.Sequel(c.out); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
