package docblocks

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/txoutbox/outbox/schema"
)

var parameter = regexp.MustCompile(`\$[1-9]`)

// RunSQL runs the SQL blocks on a migrated database with the roles of schema.RolesSQL, each in a
// transaction of its own that is rolled back, and returns what is wrong.
func RunSQL(ctx context.Context, db *sql.DB, blocks []Block) (checked int, problems []error, err error) {
	common, err := prelude("all", ".sql")
	if err != nil {
		return 0, nil, err
	}
	roles, err := schema.RolesSQL("outbox")
	if err != nil {
		return 0, nil, err
	}
	for _, b := range Of(blocks, "sql") {
		own, err := prelude(b.Page, ".sql")
		if err != nil {
			return checked, nil, err
		}
		checked++
		if err := runSQL(ctx, db, roles+common+own, b.Text); err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", b.Page, b.Line, err))
		}
	}
	return checked, problems, nil
}

func runSQL(ctx context.Context, db *sql.DB, before, text string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, before); err != nil {
		return fmt.Errorf("the prelude: %w", err)
	}
	if !parameter.MatchString(text) {
		_, err = tx.ExecContext(ctx, text)
		return err
	}
	stmt, err := tx.PrepareContext(ctx, strings.TrimSuffix(strings.TrimSpace(text), ";"))
	if err != nil {
		return err
	}
	return stmt.Close()
}
