package doctor_test

import (
	"testing"

	"github.com/txoutbox/outbox/doctor"
)

func TestCopiesAndWhatCannotTellThemAreFound(t *testing.T) {
	db := ill(t)
	db.Do(t, `SELECT outbox.note_origin('')`)
	one(t, diagnosis(t, db), "environment", doctor.Info, "", "snapshot", "relay.Config.Environment")
	db.Do(t, `SELECT outbox.note_origin('production')`)
	found := diagnosis(t, db)
	one(t, found, "copy", doctor.OK, "")
	one(t, found, "environment", doctor.OK, "")
	db.Do(t, `UPDATE outbox.origin SET system_id = NULL; UPDATE outbox.origin SET row_xid = xmin`)
	one(t, diagnosis(t, db), "copy", doctor.Info, "", "system identifier", "GRANT EXECUTE")
	db.Do(t, `UPDATE outbox.origin SET table_oid = 1`)
	one(t, diagnosis(t, db), "copy", doctor.Critical, "", "this database is a copy of ", "outbox adopt")
}
