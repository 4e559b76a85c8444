// Package doctor finds faults of an outbox and its server, and names the remedy: sessions that hold
// up vacuum, types without a handler in a relay, pools that are too small, and so on.
// https://github.com/txoutbox/outbox/blob/main/docs/tools/doctor.md lists the checks.
//
// It only reads: counts, catalogs and statistics. It costs the same with ten tasks and with ten
// million.
package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/schema"
)

// checks are all, in the order in which they are shown. Only Check refers to them.
var checks = slices.Concat(schemaChecks, rightsChecks, serverChecks, vacuumChecks, taskChecks)

// Check runs all checks and returns their findings, the worst first. A check without a fault
// returns one finding with the severity SeverityOK. A check that reaches its timeout, or that the
// schema is too old for, returns one with SeverityUnknown. The checks for which the role lacks a
// right share one finding, named rights, which lists them. So each check is in the result.
//
// It uses one connection of db at a time, on lib/pq or pgx's stdlib driver, directly or through
// PgBouncer in transaction mode. Each check is a read-only transaction of its own. It works on a
// standby, on a schema of any version, and without a schema (the finding is schema-version). The
// rights of a viewer or an operator of schema.GrantRoles suffice; a member of pg_monitor also sees
// other roles' sessions, standbys and slots in full.
//
// The error is outbox.ErrInvalidOption for a bad option or a nil db, before any SQL is sent. After
// a failed connection, or the end of ctx, the findings until then come with the error.
func Check(ctx context.Context, db *sql.DB, opts ...Option) ([]Finding, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	client, err := admin.New(db, admin.Config{Schema: s.schema})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", outbox.ErrInvalidOption, err)
	}
	var found []Finding
	var denied []check
	for _, c := range checks {
		f, lacks, err := s.run(ctx, db, client, c)
		found = append(found, f...)
		if err != nil {
			if pooling := schema.Check(ctx, db, schema.Schema(s.schema)); errors.Is(pooling, schema.ErrStatementPooling) {
				err = pooling
			}
			return sorted(found), refused(err)
		}
		if lacks {
			denied = append(denied, c)
		}
	}
	follow(found)
	return sorted(append(found, lacking(denied, s.schema)...)), nil
}

// refused is the error of a failed connection.
func refused(err error) error {
	if pgerr.Code(err) == "53300" {
		return fmt.Errorf("doctor: connect: %w: max_connections, or the limit of the role or of the database, is reached; "+
			"end sessions or make pools smaller (a superuser may still get in)", pgerr.WithoutDSN(err))
	}
	return fmt.Errorf("doctor: connect: %w", pgerr.WithoutDSN(err))
}
