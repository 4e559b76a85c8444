package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
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
		script, err := SQL(Schema(name))
		if err != nil {
			return
		}
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if scan[bool](t, tx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, name) {
			return // the app's own
		}
		const elsewhere = `SELECT (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> $1)
			+ (SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> $1)`
		before := scan[int](t, tx, elsewhere, name)
		if _, err := tx.Exec(script); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if after := scan[int](t, tx, elsewhere, name); after != before {
			t.Fatalf("%q: %d relations and functions are outside of the schema, want %d", name, after, before)
		}
		if _, err := tx.Exec(`INSERT INTO ` + quote(name) + `.task (task_type) VALUES ('T')`); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	})
}
