// Package doctor looks for what is wrong with an outbox and its server, and says what to do: who
// keeps vacuum from its work, which types no relay has a handler for, which pools are too small,
// and so on. docs/tools/doctor.md lists what it looks at.
//
// It only reads, whatever it finds, and reads counts, catalogs and statistics: it costs the same
// with ten tasks and with ten million.
package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/schema"
)

// Check looks at everything and returns what it found, the worst first. A check that found nothing
// wrong returns one finding with the severity OK; one that could not look, by its timeout, or as the
// schema is too old for it, one with Unknown. Those that could not look for want of a right share
// one finding, with the name rights, which lists them. So no check is missing from the result,
// whatever became of the others.
//
// It needs one connection of db at a time, on lib/pq or pgx's stdlib driver, directly or through
// PgBouncer in transaction mode; each check is a read-only transaction of its own. It runs on a
// standby, on a schema of any version, and where there is none (the finding is schema-version). As
// a role it needs what an operator or a viewer of schema.GrantRoles has; with pg_monitor besides,
// it sees other roles' sessions, standbys and slots in full.
//
// Errors: ErrInvalid; else that no connection was to be had, or that ctx has ended, with what was
// found until then.
func Check(ctx context.Context, db *sql.DB, opts ...Option) ([]Finding, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	client, err := admin.New(db, admin.Options{Schema: s.schema})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var found []Finding
	var denied []check
	for _, c := range checks {
		f, lacks, err := s.run(ctx, db, client, c)
		found = append(found, f...)
		if err != nil {
			if pooling := schema.Check(ctx, db, s.schema); errors.Is(pooling, schema.ErrStatementPooling) {
				err = pooling
			}
			return sorted(found), refused(err)
		}
		if lacks {
			denied = append(denied, c)
		}
	}
	return sorted(append(found, lacking(denied, s.schema)...)), nil
}

// refused is the error of a connection that is not to be had.
func refused(err error) error {
	if pgerr.Code(err) == "53300" {
		return fmt.Errorf("doctor: connect: %w: max_connections, or the limit of the role or of the database, is reached; end sessions or make pools smaller (a superuser may still get in)", pgerr.WithoutDSN(err))
	}
	return fmt.Errorf("doctor: connect: %w", pgerr.WithoutDSN(err))
}
