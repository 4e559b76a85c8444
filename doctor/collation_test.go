package doctor_test

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestAnotherVersionOfTheOrderOfTextIsFound(t *testing.T) {
	address := pgtest.ICU(t, "en")
	if err := relaytest.Migrate(address); err != nil {
		t.Fatal(err)
	}
	db := direct(t, address, "postgres")
	fine(t, diagnosis(t, db), "collation-version")
	db.Do(t, `UPDATE pg_database SET datcollversion = '1.2' WHERE datname = current_database();
		CREATE INDEX by_error ON outbox.dead_task (last_error COLLATE "sv-x-icu");
		UPDATE pg_collation SET collversion = '3.4' WHERE collname = 'sv-x-icu'`)
	found := diagnosis(t, db)
	ofDatabase := one(t, found, "collation-version", doctor.Warning, "", "the order of version 1.2", "REFRESH COLLATION VERSION")
	ofIndex := one(t, found, "collation-version", doctor.Warning, "outbox.by_error", "the order of version 3.4", "REINDEX INDEX outbox.by_error")
	for _, f := range []doctor.Finding{ofDatabase, ofIndex} {
		_, refresh, _ := strings.Cut(f.Do, "ALTER ")
		refresh, _, _ = strings.Cut(refresh, ".")
		db.Do(t, "ALTER "+refresh)
	}
	fine(t, diagnosis(t, db), "collation-version")
}
