package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// FuzzName: a schema's name is refused, or all of the outbox is in the schema of that name and
// nothing elsewhere.
func FuzzName(f *testing.F) {
	for _, s := range []string{"outbox", "a", "_", "select", "user", "public2", "task", "pg_x", "", "A", "a b", `a"b`, "a.b", "ä", "a\x00", "a;", "a'", "$1", `a\`,
		"a234567890123456789012345678901234567890123456789012345678901234", "a23456789012345678901234567890123456789012345678901234567890123", "outbox_outbox", "x_task", "information_schema"} {
		f.Add(s)
	}
	db := open(f, pgtest.Database(f))
	f.Fuzz(func(t *testing.T, name string) {
		script, err := SQL(name)
		if err != nil {
			return
		}
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		var taken bool
		if err := tx.QueryRow(`SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)`, name).Scan(&taken); err != nil || taken {
			return // the app's own
		}
		const elsewhere = `SELECT (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> $1)
			+ (SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> $1)`
		var before, after int
		if err := tx.QueryRow(elsewhere, name).Scan(&before); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(script); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		var tables int
		if err := tx.QueryRow(`SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = 'task'`, name).Scan(&tables); err != nil || tables != 1 {
			t.Fatalf("%q: %d tables of tasks: %v", name, tables, err)
		}
		if err := tx.QueryRow(elsewhere, name).Scan(&after); err != nil || after != before {
			t.Fatalf("%q: %d relations and functions are outside of the schema, want %d: %v", name, after, before, err)
		}
		if _, err := tx.Exec(`INSERT INTO ` + quote(name) + `.task (task_type) VALUES ('T')`); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	})
}
