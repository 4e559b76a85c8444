package admin_test

import (
	"errors"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestPauseNeedsRightsOnOneTable(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE ROLE pauser_of_tests`)
	defer db.Do(t, `DROP OWNED BY pauser_of_tests; DROP ROLE pauser_of_tests`)
	db.Do(t, `GRANT USAGE ON SCHEMA outbox TO pauser_of_tests;
		GRANT SELECT, INSERT, UPDATE ON outbox.task_type TO pauser_of_tests`)
	tx := begin(t, db)
	if _, err := tx.Exec(`SET LOCAL ROLE pauser_of_tests`); err != nil {
		t.Fatal(err)
	}
	c := client(t, db.DB).In(tx)
	if err := errors.Join(c.PauseType(t.Context(), "T"), c.ResumeType(t.Context(), "T")); err != nil {
		t.Error(err)
	}
}
