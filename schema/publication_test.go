package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// Beside a publication PostgreSQL refuses to change or delete rows that it could not name to a subscriber.
func TestRowsOfEveryTableCanBeDeletedBesideAPublication(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	run(t, db, `CREATE PUBLICATION everything FOR ALL TABLES;
		INSERT INTO outbox.task (task_type) VALUES ('A');
		DELETE FROM outbox.task`)
	rows, err := db.Query(`SELECT format('UPDATE %1$s SET %2$I = %2$I; DELETE FROM %1$s', c.oid::regclass, a.attname)
		  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' AND a.attgenerated = ''
		 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND a.attnum = (
		       SELECT min(b.attnum) FROM pg_attribute b WHERE b.attrelid = c.oid AND b.attnum > 0 AND NOT b.attisdropped AND b.attidentity = '' AND b.attgenerated = '')`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	tables := 0
	for rows.Next() {
		var statement string
		if err := rows.Scan(&statement); err != nil {
			t.Fatal(err)
		}
		tables++
		if _, err := db.Exec(statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if err := rows.Err(); err != nil || tables < 10 {
		t.Errorf("%d tables: %v", tables, err)
	}
}
