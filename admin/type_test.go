package admin_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestPauseNeedsRightsOnOneTable(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE ROLE pauser_of_tests`)
	defer db.Do(t, `DROP OWNED BY pauser_of_tests; DROP ROLE pauser_of_tests`)
	db.Do(t, `GRANT USAGE ON SCHEMA outbox TO pauser_of_tests; GRANT SELECT, INSERT, UPDATE ON outbox.task_type TO pauser_of_tests`)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`SET LOCAL ROLE pauser_of_tests`); err != nil {
		t.Fatal(err)
	}
	c := client(t, db.DB).In(tx)
	if err := errors.Join(c.PauseType(t.Context(), "T"), c.ResumeType(t.Context(), "T")); err != nil {
		t.Error(err)
	}
}

func TestBadNamesOfTypesAndSchedulesAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	c := unreachable(t)
	for _, name := range []string{"", "a\nb", "\xff", strings.Repeat("x", 129)} {
		for _, do := range []error{c.PauseType(t.Context(), name), c.ResumeType(t.Context(), name)} {
			if !errors.Is(do, outbox.ErrInvalidType) {
				t.Errorf("%q: got %v, want ErrInvalidType", name, do)
			}
		}
	}
	if err := c.PauseSchedule(t.Context(), "\x00"); !errors.Is(err, outbox.ErrInvalidOption) {
		t.Errorf("got %v, want ErrInvalidOption", err)
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	for _, err := range []error{c.PauseSchedule(t.Context(), "none"), c.ResumeSchedule(t.Context(), "none"), c.RemoveSchedule(t.Context(), "none"), c.RemoveSchedule(t.Context(), "")} {
		if !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	}
	if err := client(t, db.DB, admin.Options{Schema: "elsewhere"}).PauseType(t.Context(), "TX"); err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("a pause in a schema that does not exist: got %v", err)
	}
}
