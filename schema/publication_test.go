package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// Beside a publication PostgreSQL refuses to change or delete rows that it could not name to a
// subscriber.
func TestRowsOfEveryTableCanBeDeletedBesideAPublication(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	run(t, db, `CREATE PUBLICATION everything FOR ALL TABLES;
		INSERT INTO outbox.task (task_type) VALUES ('A');
		DELETE FROM outbox.task`)
	run(t, db, `DO $$
		DECLARE name regclass; col name;
		BEGIN
			FOR name, col IN SELECT c.oid, (SELECT attname FROM pg_attribute
				WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = '' ORDER BY attnum LIMIT 1)
				FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'
			LOOP
				EXECUTE format('UPDATE %1$s SET %2$I = %2$I; DELETE FROM %1$s', name, col);
			END LOOP;
			ASSERT FOUND;
		END $$`)
}
