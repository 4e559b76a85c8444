package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// visit is one look, in its transaction.
type visit struct {
	settings
	tx    *sql.Tx
	admin *admin.Client // in tx
	found []Finding
}

func (v *visit) add(check string, severity Severity, subject, what, do string) {
	v.found = append(v.found, Finding{check, severity, subject, what, do})
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

// span is a duration that a statement returns in microseconds; NULL is 0.
type span struct{ time.Duration }

// Scan implements sql.Scanner.
func (s *span) Scan(src any) error {
	us, ok := src.(int64)
	if !ok && src != nil {
		return fmt.Errorf("microseconds are a %T", src)
	}
	s.Duration = time.Duration(us) * time.Microsecond
	return nil
}

// String rounds to what a person wants to know.
func (s span) String() string { return said(s.Duration) }
