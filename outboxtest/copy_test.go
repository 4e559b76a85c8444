package outboxtest_test

import (
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/outboxtest"
)

// A test that is pointed at a restored dump does not send the tasks that wait in it.
func TestDrainRunsNothingInACopy(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx := begin(t, db)
		enqueue(t, tx, "TX", 1)
		exec(t, tx, `UPDATE outbox.origin SET system_id = system_id + 1, table_oid = 1`)
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.Drain(t, tx, handlers.New())
		}), "this database is a copy", "outbox adopt")
		wantText(t, tx, "1", `SELECT count(*) FROM outbox.task`)
	})
}
