package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// QueryTx is a query in a transaction, whose rows each gets.
func QueryTx(ctx context.Context, tx *sql.Tx, query string, args []any, each func([]driver.Value) error) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	found, values, into := make([]any, len(columns)), make([]driver.Value, len(columns)), make([]any, len(columns))
	for i := range found {
		into[i] = &found[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, v := range found {
			values[i] = v
		}
		if err := each(values); err != nil {
			return err
		}
	}
	return rows.Err()
}
