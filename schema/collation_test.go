package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// Text that is for people, or that PostgreSQL compares nowhere.
const inTheDatabasesCollation = `dead_task.last_error done_task.last_error keyed_task.on_conflict keyed_task.outcome task.last_error`

// An index in the order of a locale misses rows once another libc or ICU has another order: unique
// keys are taken twice, and tasks never run.
func TestNoIndexOfTheSchemaIsInTheOrderOfALocale(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	const indexed = `SELECT i.indexrelid::regclass || ' ' || k.n FROM pg_index i
		JOIN pg_class c ON c.oid = i.indrelid, unnest(i.indcollation) WITH ORDINALITY AS k (of, n)
		WHERE c.relnamespace = <ns> AND k.of NOT IN (0, 'pg_catalog."C"'::regcollation)`
	if got := list(t, db, "outbox", indexed); got != "" {
		t.Errorf("index columns in another collation than C: %s", got)
	}
	const columns = `SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = <ns> AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped
		  AND a.attcollation NOT IN (0, 'pg_catalog."C"'::regcollation)`
	if got := list(t, db, "outbox", columns); got != inTheDatabasesCollation {
		t.Errorf("columns in another collation than C: %s\nwant %s", got, inTheDatabasesCollation)
	}
	const predicates = `SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		WHERE c.relnamespace = <ns> AND i.indpred::text ~ ':(inputcollid|opcollid) 100 '`
	if got := list(t, db, "outbox", predicates); got != "" {
		t.Errorf("conditions of indexes in another collation than C: %s", got)
	}
}
