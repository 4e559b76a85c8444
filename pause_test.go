package outbox_test

import (
	"testing"

	"github.com/txoutbox/outbox"
)

func TestPauseNeedsRightsOnOneTable(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE ROLE pauser_of_tests`)
	t.Cleanup(func() { exec2(t, d.db, `DROP OWNED BY pauser_of_tests`, `DROP ROLE pauser_of_tests`) })
	exec(t, d.db, `GRANT USAGE ON SCHEMA outbox TO pauser_of_tests`)
	exec(t, d.db, `GRANT SELECT, INSERT, UPDATE ON outbox.task_type TO pauser_of_tests`)
	tx := begin(t, d.db)
	exec(t, tx, `SET LOCAL ROLE pauser_of_tests`)
	if err := outbox.Pause(t.Context(), tx, "T"); err != nil {
		t.Error(err)
	}
	if err := outbox.Resume(t.Context(), tx, "T"); err != nil {
		t.Error(err)
	}
}
