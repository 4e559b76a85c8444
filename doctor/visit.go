package doctor

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/schemaname"
)

// visit is one check of one schema, in its transaction.
type visit struct {
	schema   string
	settings settings
	tx       *sql.Tx
	admin    *admin.Client // in tx
	found    []Finding
}

func (v *visit) add(check string, severity Severity, subject, what, do string) {
	v.found = append(v.found, Finding{check, severity, subject, what, do})
}

// sql puts the schema's name into a statement, which is written for the schema "outbox".
func (v *visit) sql(query string) string {
	if v.schema == schemaname.Default {
		return query
	}
	return strings.ReplaceAll(query, "outbox.", `"`+v.schema+`".`)
}

// name is an object of the schema in a statement for people.
func (v *visit) name(of string) string {
	in := v.schema
	if in != schemaname.Default {
		in = quote(in)
	}
	if !plain.MatchString(of) {
		of = quote(of)
	}
	return in + "." + of
}

// row scans the only row of a query's result.
func (v *visit) row(ctx context.Context, query string, args []any, into ...any) error {
	return v.tx.QueryRowContext(ctx, v.sql(query), args...).Scan(into...)
}

// each scans each row of a query's result into the same variables, and calls f.
func (v *visit) each(ctx context.Context, query string, args, into []any, f func()) error {
	rows, err := v.tx.QueryContext(ctx, v.sql(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		f()
	}
	return errors.Join(rows.Err(), rows.Close())
}
