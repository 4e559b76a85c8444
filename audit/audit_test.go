package audit_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

func onEachDriver(t *testing.T, test func(t *testing.T, db *relaytest.Database)) {
	t.Helper()
	drivers := []string{"postgres", "pgx"}
	if os.Getenv("OUTBOX_TEST_DRIVER") != "" {
		drivers = []string{relaytest.DriverName()}
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { test(t, relaytest.NewDatabase(t, driver)) })
	}
}

var entry = audit.Entry{Actor: "ada <ada@example.com>", Tool: "dashboard", Action: "redrive", Target: `type "A'; --", error like %x%`, Count: 42}

func TestAnEntryIsThereWhenItsTransactionHasCommitted(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *relaytest.Database) {
		for _, commit := range []bool{false, true} {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			got, err := audit.Write(t.Context(), tx, entry)
			if err != nil || got.EntryID < 1 || time.Since(got.At).Abs() > time.Hour {
				t.Errorf("got %+v, %v", got, err)
			}
			if want := (audit.Entry{EntryID: got.EntryID, At: got.At, Actor: entry.Actor, Tool: entry.Tool, Action: entry.Action, Target: entry.Target, Count: entry.Count}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if before, err := audit.List(t.Context(), db, 0, 0); err != nil || len(before) != 0 {
				t.Errorf("before the commit: %+v, %v", before, err)
			}
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			after, err := audit.List(t.Context(), db, 0, 0)
			if err != nil || commit != (len(after) == 1) || commit && (!after[0].At.Equal(got.At) || after[0].EntryID != got.EntryID || after[0].Target != entry.Target) {
				t.Errorf("committed %v: %+v, %v", commit, after, err)
			}
		}
	})
}

func TestEntriesAreListedTheLatestFirst(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *relaytest.Database) {
		var want []int64
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			for range 25 {
				got, err := audit.Write(context.WithoutCancel(t.Context()), tx, entry)
				if err != nil {
					return err
				}
				want = append([]int64{got.EntryID}, want...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for before := int64(0); ; {
			page, err := audit.List(t.Context(), db, before, 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				got = append(got, e.EntryID)
			}
			if len(page) < 10 {
				break
			}
			before = page[len(page)-1].EntryID
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if page, err := audit.List(t.Context(), db, -1, 0); err != nil || len(page) != 25 {
			t.Errorf("from the beginning: %d entries, %v", len(page), err)
		}
	})
}

// What Go lets pass PostgreSQL takes, and what Go refuses is refused before any SQL.
func TestEntriesHaveTheirLimits(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	long := func(n int) string { return strings.Repeat("ü", n/2) }
	most := audit.Entry{Actor: long(256), Tool: long(64), Action: long(64), Target: long(1024), Count: 1 << 62}
	for _, good := range []audit.Entry{most, {Actor: "a", Tool: "t", Action: "a"}} {
		if _, err := audit.Write(t.Context(), tx, good); err != nil {
			t.Error(err)
		}
	}
	for field, change := range map[string][]func(*audit.Entry){
		"Actor":  {func(e *audit.Entry) { e.Actor = "" }, func(e *audit.Entry) { e.Actor += "x" }, func(e *audit.Entry) { e.Actor = "\xff" }},
		"Tool":   {func(e *audit.Entry) { e.Tool = "" }, func(e *audit.Entry) { e.Tool += "x" }, func(e *audit.Entry) { e.Tool = "a\x00" }},
		"Action": {func(e *audit.Entry) { e.Action = "" }, func(e *audit.Entry) { e.Action += "x" }},
		"Target": {func(e *audit.Entry) { e.Target += "x" }, func(e *audit.Entry) { e.Target = "\x00" }},
		"Count":  {func(e *audit.Entry) { e.Count = -1 }},
	} {
		for _, f := range change {
			e := most
			f(&e)
			if _, err := audit.Write(t.Context(), tx, e); !errors.Is(err, audit.ErrInvalid) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v, want ErrInvalid", field, err)
			}
		}
	}
	for _, tx := range []outbox.Querier{nil, (*sql.Tx)(nil), db.DB, sqlx.NewDb(db.DB, "postgres")} {
		if _, err := audit.Write(t.Context(), tx, entry); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("%T: %v, want ErrNoTransaction", tx, err)
		}
	}
	for _, o := range []audit.Option{nil, audit.Schema("A b")} {
		_, err1 := audit.Write(t.Context(), tx, entry, o)
		_, err2 := audit.List(t.Context(), nil, 0, 0, o)
		if !errors.Is(err1, audit.ErrInvalid) || !errors.Is(err2, audit.ErrInvalid) {
			t.Errorf("got %v and %v, want ErrInvalid", err1, err2)
		}
	}
	for _, limit := range []int{-1, 1001} {
		if _, err := audit.List(t.Context(), nil, 0, limit); !errors.Is(err, audit.ErrInvalid) {
			t.Errorf("limit %d: %v, want ErrInvalid", limit, err)
		}
	}
	if n := db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL AND state LIKE '%aborted%' AND datname = current_database()`); n != 0 {
		t.Error("something reached the server")
	}
	// In SQL, the same limits.
	for _, row := range []string{"'', 't', 'a', '', 0", "'a', '', 'a', '', 0", "'a', 't', '', '', 0", "repeat('x', 257), 't', 'a', '', 0", "'a', repeat('x', 65), 'a', '', 0",
		"'a', 't', repeat('x', 65), '', 0", "'a', 't', 'a', repeat('x', 1025), 0", "'a', 't', 'a', '', -1"} {
		if _, err := db.Exec(`INSERT INTO outbox.audit (actor, tool, action, target, count) VALUES (` + row + `)`); err == nil || !strings.Contains(err.Error(), "audit_") {
			t.Errorf("%s: %v, want a violated CHECK", row, err)
		}
	}
}

func TestEntriesInAnotherSchema(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, pgtest.Database(t))
	if err := schema.Migrate(t.Context(), db.DB, schema.Schema("app_outbox")); err != nil {
		t.Fatal(err)
	}
	tx, err := sqlx.NewDb(db.DB, "postgres").Beginx()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	written, err := audit.Write(t.Context(), tx, entry, audit.Schema("app_outbox"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := audit.List(t.Context(), tx, written.EntryID+1, 1, audit.Schema("app_outbox")); err != nil || len(got) != 1 || got[0].EntryID != written.EntryID {
		t.Errorf("got %+v, %v", got, err)
	}
}
