package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// Two schemas of one database have tasks of the same ids, so their keys begin with other halves.
func TestEachSchemaHasAnIDOfItsOwn(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	migrate(t, db, Schema("second"))
	const half = `SELECT left(database_id::text, 18) FROM `
	if one, two := scan[string](t, db, half+`outbox.identity`), scan[string](t, db, half+`second.identity`); one == two {
		t.Errorf("both have the id %s…", one)
	}
}
