package dashboard_test

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
)

func TestPagesSayThatTheDatabaseIsACopy(t *testing.T) {
	db, _ := filled(t)
	const text = "Relays run no task here, as this database is a copy of"
	for _, copied := range []bool{false, true} {
		if copied {
			db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1`)
		}
		s := serve(t, db, dashboard.Config{Authorize: as(dashboard.View)})
		for _, page := range []string{"", "dead", "relays", "audit"} {
			if body := s.get(t, page).body; strings.Contains(body, text) != copied {
				t.Errorf("/%s: copied %v", page, !copied)
			}
		}
	}
}
