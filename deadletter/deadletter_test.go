package deadletter_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// newDatabase is a migrated database of the test's own. OUTBOX_TEST_DRIVER is the driver, postgres (lib/pq) or pgx.
func newDatabase(t testing.TB, opts ...schema.Option) *sql.DB {
	t.Helper()
	driver := os.Getenv("OUTBOX_TEST_DRIVER")
	if driver == "" {
		driver = "postgres"
	}
	db, err := pgtest.Open(driver, relaytest.Migrated(t, opts...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

func exec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func number(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// bury writes n dead letters of a type that died the given number of minutes ago, each a second before the next, with ids from first on.
func bury(t testing.TB, db *sql.DB, taskType, reason, text string, first, n, minutesAgo int) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error, task_max_attempts)
		SELECT i, now() - interval '2 days', now() - interval '3 days', now() - interval '1 day', now() - $6::int * interval '1 minute' + (i - $4::int) * interval '1 second',
		       3, 5, 5, $2, $1, jsonb_build_object('n', i), '{"trace": "x"}', $3, CASE WHEN i % 2 = 0 THEN 5 END
		  FROM generate_series($4::int, $4::int + $5::int - 1) i`, taskType, reason, text, first, n, minutesAgo)
}

func ids(letters []deadletter.Letter) (out []int64) {
	for _, l := range letters {
		out = append(out, l.TaskID)
	}
	return out
}

func TestFiltersSayWhichDeadLettersAreMeant(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "MAIL", "attempts", "dial tcp: connection refused", 1, 1, 50)
	bury(t, db, "MAIL", "handler", "dead: 50% of it_em \\ is wrong", 2, 1, 40)
	bury(t, db, "PAY", "lost_connections", "relay: 10 runs", 3, 1, 30)
	bury(t, db, "PAY", "committed", "connection refused", 4, 1, 20)
	now := time.Now()
	for name, c := range map[string]struct {
		filter deadletter.Filter
		want   []int64
	}{
		"all":            {deadletter.Filter{}, []int64{4, 3, 2, 1}},
		"type":           {deadletter.Filter{Type: "MAIL"}, []int64{2, 1}},
		"reason":         {deadletter.Filter{Reason: deadletter.LostConnections}, []int64{3}},
		"pattern":        {deadletter.Filter{Error: "%connection refused"}, []int64{4, 1}},
		"whole":          {deadletter.Filter{Error: "connection refused"}, []int64{4}},
		"_":              {deadletter.Filter{Error: "%con_ection%"}, []int64{4, 1}},
		"containing":     {deadletter.Filter{Error: deadletter.Containing(`50% of it_em \`)}, []int64{2}},
		"containing not": {deadletter.Filter{Error: deadletter.Containing("50_")}, nil},
		"after":          {deadletter.Filter{DiedAfter: now.Add(-35 * time.Minute)}, []int64{4, 3}},
		"before":         {deadletter.Filter{DiedBefore: now.Add(-35 * time.Minute)}, []int64{2, 1}},
		"older":          {deadletter.Filter{OlderThan: 25 * time.Minute}, []int64{3, 2, 1}},
		"together":       {deadletter.Filter{Type: "MAIL", Reason: deadletter.Attempts, Error: "%refused", DiedAfter: now.Add(-time.Hour), DiedBefore: now, OlderThan: time.Minute}, []int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := deadletter.List(t.Context(), db, c.filter, deadletter.Cursor{}, 0)
			if err != nil || !slices.Equal(ids(got), c.want) {
				t.Errorf("List: got %v, %v, want %v", ids(got), err, c.want)
			}
			if n, err := deadletter.Count(t.Context(), db, c.filter); err != nil || int(n) != len(c.want) {
				t.Errorf("Count: got %d, %v, want %d", n, err, len(c.want))
			}
			page, p, err := deadletter.ListPage(t.Context(), db, c.filter, deadletter.Cursor{}, 0, 0)
			if err != nil || !slices.Equal(ids(page), c.want) || !p.Last || int(p.Count) != len(c.want) {
				t.Errorf("ListPage: got %v, %+v, %v, want %v", ids(page), p, err, c.want)
			}
			if p, err := deadletter.CountPage(t.Context(), db, c.filter, deadletter.Cursor{}, 0); err != nil || int(p.Count) != len(c.want) || !p.Last {
				t.Errorf("CountPage: got %+v, %v, want %d", p, err, len(c.want))
			}
		})
	}
}

func TestPagesNeitherRepeatNorSkip(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "MAIL", "attempts", "boom", 1, 25, 60)
	exec(t, db, `UPDATE outbox.dead_task SET died_at = (SELECT min(died_at) FROM outbox.dead_task) WHERE task_id % 2 = 0`) // at the same moment
	all, err := deadletter.List(t.Context(), db, deadletter.Filter{}, deadletter.Cursor{}, 1000)
	if err != nil || len(all) != 25 {
		t.Fatalf("got %d letters, %v, want 25", len(all), err)
	}
	var got []int64
	var after deadletter.Cursor
	for i := 0; ; i++ {
		page, err := deadletter.List(t.Context(), db, deadletter.Filter{Type: "MAIL"}, after, 4)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		got, after = append(got, ids(page)...), page[len(page)-1].Cursor()
		bury(t, db, "MAIL", "attempts", "boom", 100+i, 1, 1) // newer ones, before the first page
	}
	if !slices.Equal(got, ids(all)) {
		t.Errorf("pages have %v, want %v", got, ids(all))
	}
}

func TestGetShowsAllOfADeadLetter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "MAIL", "attempts", "boom", 7, 2, 60)
	exec(t, db, `UPDATE outbox.dead_task SET headers = NULL, attempted_at = NULL, last_error = NULL WHERE task_id = 8`)
	l, err := deadletter.Get(t.Context(), db, 7)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d %s %s %s %d/%d %d %s %s", l.TaskID, l.Type, l.Reason, l.Error, l.Attempt, l.MaxAttempts, l.Priority, l.Payload, l.Headers)
	if want := `7 MAIL attempts boom 5/5 3 {"n": 7} {"trace": "x"}`; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	for name, c := range map[string]struct {
		at  time.Time
		ago time.Duration
	}{"created": {l.CreatedAt, 72 * time.Hour}, "run": {l.RunAt, 48 * time.Hour}, "attempted": {l.AttemptedAt, 24 * time.Hour}, "died": {l.DiedAt, time.Hour}} {
		if d := time.Since(c.at) - c.ago; d.Abs() > 5*time.Minute {
			t.Errorf("%s %v ago, want %v", name, time.Since(c.at), c.ago)
		}
	}
	l, err = deadletter.Get(t.Context(), db, 8)
	if err != nil || l.Headers != nil || !l.AttemptedAt.IsZero() || l.Error != "" {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := deadletter.Get(t.Context(), db, 9); !errors.Is(err, deadletter.ErrNotFound) || !strings.Contains(err.Error(), "9") {
		t.Errorf("got %v, want ErrNotFound that names the task", err)
	}
}

func TestBadArgumentsAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", "postgres://127.0.0.1:1/nowhere?sslmode=disable") // any SQL would fail otherwise
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, some := t.Context(), deadletter.Filter{Type: "X"}
	for want, f := range map[string]deadletter.Filter{
		"Filter.Type": {Type: "a\x00"}, "Filter.Error: \"a\\xff\"": {Error: "a\xff"}, `ends with a \`: {Error: `a\\\`},
		"Filter.Reason": {Reason: "old age"}, "Filter.OlderThan": {OlderThan: -1}, "Filter.DiedAfter": {DiedAfter: time.Unix(1<<50, 0)},
		"Filter.DiedBefore": {DiedBefore: time.Unix(-1<<50, 0)},
	} {
		for call, do := range map[string]func() error{
			"List":        func() error { _, err := deadletter.List(ctx, db, f, deadletter.Cursor{}, 1); return err },
			"ListPage":    func() error { _, _, err := deadletter.ListPage(ctx, db, f, deadletter.Cursor{}, 1, 0); return err },
			"Count":       func() error { _, err := deadletter.Count(ctx, db, f); return err },
			"CountPage":   func() error { _, err := deadletter.CountPage(ctx, db, f, deadletter.Cursor{}, 0); return err },
			"Purge":       func() error { _, err := deadletter.Purge(ctx, db, f, 1); return err },
			"PurgeMany":   func() error { _, err := deadletter.PurgeMany(ctx, db, f, 1); return err },
			"RedriveMany": func() error { _, err := deadletter.RedriveMany(ctx, db, f, 1); return err },
		} {
			if err := do(); !errors.Is(err, deadletter.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want ErrInvalid with %q", call, err, want)
			}
		}
	}
	for want, do := range map[string]func() error{
		"limit -1":   func() error { _, err := deadletter.List(ctx, db, some, deadletter.Cursor{}, -1); return err },
		"limit 1001": func() error { _, err := deadletter.List(ctx, db, some, deadletter.Cursor{}, 1001); return err },
		"limit -2":   func() error { _, _, err := deadletter.ListPage(ctx, db, some, deadletter.Cursor{}, -2, 0); return err },
		"Cursor.DiedAt": func() error {
			_, err := deadletter.CountPage(ctx, db, some, deadletter.Cursor{DiedAt: time.Unix(1<<50, 0), TaskID: 1}, 0)
			return err
		},
		"look -1":      func() error { _, _, err := deadletter.ListPage(ctx, db, some, deadletter.Cursor{}, 0, -1); return err },
		"look 100001":  func() error { _, err := deadletter.CountPage(ctx, db, some, deadletter.Cursor{}, 100_001); return err },
		"limit 1002":   func() error { _, err := deadletter.Purge(ctx, db, some, 1002); return err },
		"perSecond -1": func() error { _, err := deadletter.RedriveMany(ctx, db, some, -1); return err },
		"zero Filter":  func() error { _, err := deadletter.Purge(ctx, db, deadletter.Filter{}, 0); return err },
		"purge all":    func() error { _, err := deadletter.PurgeMany(ctx, db, deadletter.Filter{}, 0); return err },
		"1001 ids":     func() error { _, err := deadletter.Redrive(ctx, db, make([]int64, 1001)); return err },
		"Option is":    func() error { _, err := deadletter.Redrive(ctx, db, []int64{1}, nil); return err },
		`Schema("A")`:  func() error { _, err := deadletter.Get(ctx, db, 1, deadletter.Schema("A")); return err },
	} {
		if err := do(); !errors.Is(err, deadletter.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrInvalid with %q", err, want)
		}
	}
	if ids, err := deadletter.Redrive(ctx, db, nil); ids != nil || err != nil {
		t.Errorf("no ids: got %v, %v", ids, err)
	}
	if _, err := deadletter.Redrive(ctx, sqlx.NewDb(db, "postgres"), []int64{1}); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("a pool of sqlx: got %v, want ErrNoTransaction", err)
	}
}

func TestEverythingWorksOnEachClientAndInAnotherSchema(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			db, err := pgtest.Open(driver, pgtest.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := schema.Migrate(t.Context(), db, schema.Schema("select")); err != nil {
				t.Fatal(err)
			}
			there := deadletter.Schema("select")
			reset := func() {
				exec(t, db, `TRUNCATE "select".task, "select".dead_task`)
				exec(t, db, `INSERT INTO "select".dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
					SELECT i, now(), now(), 0, 1, 1, 'attempts', 'X', '{}', 'boom' FROM generate_series(1, 3) i`)
			}
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			xtx, err := sqlx.NewDb(db, driver).Beginx()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				name string
				q    outbox.Querier
				end  func() error
			}{{"DB", db, nil}, {"Conn", conn, nil}, {"Tx", tx, tx.Commit}, {"sqlx.Tx", xtx, xtx.Commit}} {
				reset()
				ctx := t.Context()
				page, err := deadletter.List(ctx, c.q, deadletter.Filter{Type: "X"}, deadletter.Cursor{}, 2, there)
				if err != nil || len(page) != 2 {
					t.Errorf("%s: List: %v, %v", c.name, page, err)
				}
				if _, err := deadletter.Get(ctx, c.q, 1, there); err != nil {
					t.Errorf("%s: Get: %v", c.name, err)
				}
				if n, err := deadletter.Count(ctx, c.q, deadletter.Filter{}, there); n != 3 || err != nil {
					t.Errorf("%s: Count: %d, %v", c.name, n, err)
				}
				if moved, err := deadletter.Redrive(ctx, c.q, []int64{2, 9}, there); !slices.Equal(moved, []int64{2}) || err != nil {
					t.Errorf("%s: Redrive: %v, %v", c.name, moved, err)
				}
				if n, err := deadletter.Purge(ctx, c.q, deadletter.Filter{Error: "boom"}, 1, there); n != 1 || err != nil {
					t.Errorf("%s: Purge: %d, %v", c.name, n, err)
				}
				if c.end != nil {
					if n := number(t, db, `SELECT count(*) FROM "select".dead_task`); n != 3 {
						t.Errorf("%s: %d dead letters before the commit, want 3", c.name, n)
					}
					if err := c.end(); err != nil {
						t.Fatal(err)
					}
				}
				if task, dead := number(t, db, `SELECT count(*) FROM "select".task`), number(t, db, `SELECT count(*) FROM "select".dead_task`); task != 1 || dead != 1 {
					t.Errorf("%s: %d tasks and %d dead letters, want 1 and 1", c.name, task, dead)
				}
			}
			reset()
			if n, err := deadletter.RedriveMany(t.Context(), db, deadletter.Filter{}, 0, there); n != 3 || err != nil {
				t.Errorf("RedriveMany: %d, %v", n, err)
			}
			reset()
			if n, err := deadletter.PurgeMany(t.Context(), db, deadletter.Filter{Type: "X"}, 0, there); n != 3 || err != nil {
				t.Errorf("PurgeMany: %d, %v", n, err)
			}
		})
	}
}
