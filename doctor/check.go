package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// check looks for some faults with the same statements, and adds its findings to a visit. A new
// check is a file, and an entry of checks.
type check struct {
	look   func(ctx context.Context, v *visit) error
	passed []passed
	bare   bool // it reads settings, so none but jit is set before it; it reads catalogs only
}

// passed is the text of a check that found nothing.
type passed struct{ name, what string }

const mostFindings = 20 // of one check

// run runs a check. It returns an error only if the connection is lost, which all checks need. If the
// role lacks a right, lacking is true and the findings do not say so.
func (s settings) run(ctx context.Context, db *sql.DB, client *admin.Client, c check) (found []Finding, lacking bool,
	err error) {
	bounded, cancel := context.WithTimeout(ctx, 3*s.timeout+10*time.Second) // the server's timeout is shorter
	defer cancel()
	tx, err := db.BeginTx(bounded, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return c.unknown(err, s.schema), false, err
	}
	defer func() { _ = tx.Rollback() }() // it has written nothing
	v := &visit{schema: s.schema, settings: s, tx: tx, admin: client.In(tx)}
	// The lock timeout tells a lock from a busy server. Without statistics the planner underestimates a
	// sequential scan of the tasks.
	if ms := s.timeout.Milliseconds(); c.bare {
		_, err = tx.ExecContext(bounded, "SET LOCAL jit = off")
	} else {
		_, err = tx.ExecContext(bounded, fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d; "+
			"SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL intervalstyle = postgres; "+
			"SET LOCAL enable_seqscan = off; SET LOCAL jit = off", ms, max(ms/2, 1)))
	}
	if err == nil {
		err = c.look(bounded, v)
	}
	switch {
	case ctx.Err() != nil:
		return v.found, false, context.Cause(ctx)
	case pgerr.Code(err) == insufficientPrivilege:
		return v.found, true, nil
	case err != nil:
		return append(v.found, c.unknown(err, s.schema)...), false, nil
	}
	return c.complete(v.found), false, nil
}

// complete adds a finding for each name without one, and cuts long lists.
func (c check) complete(found []Finding) (out []Finding) {
	for _, p := range c.passed {
		of := []Finding{}
		for _, f := range found {
			if f.Check == p.name {
				of = append(of, f)
			}
		}
		of = sorted(of)
		switch {
		case len(of) == 0:
			of = []Finding{{Check: p.name, Severity: SeverityOK, Message: p.what}}
		case len(of) > mostFindings:
			more := Finding{Check: p.name, Severity: of[mostFindings].Severity,
				Message: fmt.Sprintf("there are %d more findings like these", len(of)-mostFindings), Remedy: "as above"}
			of = append(of[:mostFindings], more)
		}
		out = append(out, of...)
	}
	return out
}

// unknown are the findings of a check that the server refused. They have no text of the server's, as
// that may repeat values.
func (c check) unknown(err error, schema string) (out []Finding) {
	what, do := "not checked: "+pgerr.WithoutDSN(err).Error(), ""
	switch code := pgerr.Code(err); code {
	case "":
		if errors.Is(err, context.DeadlineExceeded) {
			what = "not checked: the server did not answer in time"
		}
	case "57014":
		what, do = "not checked: it took longer than its timeout", "try again with a longer one, "+
			"look why the server is busy, and see relays: counts take longer with each enqueue while no relay works"
	case "55P03":
		what, do = "not checked: another session holds a lock on a table of the outbox",
			"see lock-wait and held-transaction"
	case "42P01", "42703", "42883", "3F000":
		what, do = "not checked: the schema lacks objects that it needs", "see schema-version"
	default:
		what = "not checked: the server refused it, with SQLSTATE " + code
	}
	for _, p := range c.passed {
		out = append(out, Finding{Check: p.name, Severity: SeverityUnknown, Message: what, Remedy: do})
	}
	return out
}

const insufficientPrivilege = "42501"

// lacking is the one finding for all checks for which the role lacks a right.
func lacking(all []check, schema string) []Finding {
	if len(all) == 0 {
		return nil
	}
	var names []string
	for _, c := range all {
		for _, p := range c.passed {
			names = append(names, p.name)
		}
	}
	return []Finding{{Check: "rights", Severity: SeverityUnknown,
		Message: "not checked, as the role lacks a right: " + strings.Join(names, ", "),
		Remedy: "make it a member of " + schema + "_viewer, a role of schema.GrantRoles (outbox roles apply), " +
			"or give it USAGE on the schema and SELECT on its tables"}}
}
