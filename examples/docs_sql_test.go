package examples_test

import (
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

var parameter = regexp.MustCompile(`\$[1-9]`)

// runSQL runs SQL blocks, each in a transaction that is rolled back, and returns what is wrong.
func runSQL(t *testing.T, blocks []block) (problems []string) {
	context, err := os.ReadFile("testdata/context.sql")
	relaytest.Must(err)
	roles, err := schema.RolesSQL("outbox")
	relaytest.Must(err)
	db, err := sql.Open("postgres", pgtest.Database(t))
	relaytest.Must(err)
	defer db.Close()
	relaytest.Must(schema.Migrate(t.Context(), db))
	for _, b := range blocks {
		tx, err := db.BeginTx(t.Context(), nil)
		relaytest.Must(err)
		if _, err := tx.Exec(roles + string(context)); err != nil {
			t.Fatal(err)
		}
		if parameter.MatchString(b.text) {
			_, err = tx.Prepare(strings.TrimSuffix(strings.TrimSpace(b.text), ";"))
		} else {
			_, err = tx.Exec(b.text)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s:%d: %v", b.page, b.line, err))
		}
		relaytest.Must(tx.Rollback())
	}
	return problems
}
