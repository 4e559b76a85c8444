package doctor

import (
	"context"
	"database/sql"
	"errors"
)

// visit is one look, in its transaction.
type visit struct {
	settings
	tx    *sql.Tx
	found []Finding
}

func (v *visit) add(check string, severity Severity, subject, what, do string) {
	v.found = append(v.found, Finding{check, severity, subject, what, do})
}

// rows calls scan for each row of a query's result.
func (v *visit) rows(ctx context.Context, scan func(row *sql.Rows) error, query string, args ...any) error {
	rows, err := v.tx.QueryContext(ctx, v.sql(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

func (v *visit) row(ctx context.Context, query string, args ...any) *sql.Row {
	return v.tx.QueryRowContext(ctx, v.sql(query), args...)
}
