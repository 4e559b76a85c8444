package examples_test

import (
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

var parameter = regexp.MustCompile(`\$[1-9]`)

// runSQL runs SQL blocks, each in a transaction that is rolled back, and returns what is wrong.
func runSQL(t *testing.T, blocks []block) (problems []string) {
	context, err := os.ReadFile("testdata/context.sql")
	if err != nil {
		t.Fatal(err)
	}
	roles, err := schema.RolesSQL("outbox")
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("postgres", pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
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
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	return problems
}
