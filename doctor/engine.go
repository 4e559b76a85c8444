package doctor

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/schema"
)

// check looks for faults. Most checks are a row with a query; CONTRIBUTING.md says how to add one.
type check struct {
	name, fine string // fine is the text if it finds nothing

	// query returns a row for each finding: severity, subject, message and remedy.
	query string
	args  func(settings) []any // of the query; nil: none

	// look adds findings to the visit, where one query cannot find them. It may find under further names.
	look func(ctx context.Context, v *visit) error
	also []passed

	ofVersion bool // it needs objects of this program's version, and is left out with another one
	bare      bool // it reads settings, so none but jit is set before it; it reads catalogs only
}

// passed is the text of a check that found nothing.
type passed struct{ name, fine string }

func (c check) all() []passed { return append([]passed{{c.name, c.fine}}, c.also...) }

func ofSchema(s settings) []any { return []any{s.schema} }

const mostFindings = 20 // of one check

// run runs a check. It returns an error only if the connection is lost, which all checks need. If the
// role lacks a right, lacking is true and the findings do not say so.
func (s settings) run(ctx context.Context, db *sql.DB, client *admin.Client, c check) (found []Finding, lacking bool,
	err error) {
	bounded, cancel := context.WithTimeout(ctx, 3*s.timeout+10*time.Second) // the server's timeout is shorter
	defer cancel()
	tx, err := db.BeginTx(bounded, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return c.unknown(err), false, err
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
		err = v.run(bounded, c)
	}
	switch {
	case ctx.Err() != nil:
		return v.found, false, context.Cause(ctx)
	case pgerr.Code(err) == insufficientPrivilege:
		return v.found, true, nil
	case err != nil:
		return append(v.found, c.unknown(err)...), false, nil
	}
	return c.complete(v.found), false, nil
}

// run adds the findings of a check.
func (v *visit) run(ctx context.Context, c check) error {
	if c.ofVersion {
		version, _, _, err := v.versions(ctx)
		if err != nil {
			return err
		}
		if needed := schema.Version(); version != needed {
			for _, p := range c.all() {
				v.add(p.name, SeverityInfo, "", fmt.Sprintf("not checked: the schema is at version %d, "+
					"and this program knows version %d", version, needed), "")
			}
			return nil
		}
	}
	if c.look != nil {
		return c.look(ctx, v)
	}
	var args []any
	if c.args != nil {
		args = c.args(v.settings)
	}
	f := Finding{Check: c.name}
	return v.each(ctx, c.query, args, []any{&f.Severity, &f.Subject, &f.Message, &f.Remedy}, func() {
		v.found = append(v.found, f)
	})
}

// complete adds a finding for each name without one, and cuts long lists.
func (c check) complete(found []Finding) (out []Finding) {
	for _, p := range c.all() {
		of := []Finding{}
		for _, f := range found {
			if f.Check == p.name {
				of = append(of, f)
			}
		}
		of = sorted(of)
		switch {
		case len(of) == 0:
			of = []Finding{{Check: p.name, Severity: SeverityOK, Message: p.fine}}
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
func (c check) unknown(err error) (out []Finding) {
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
	for _, p := range c.all() {
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
	return []Finding{{Check: "rights", Severity: SeverityUnknown,
		Message: "not checked, as the role lacks a right: " + strings.Join(namesOf(all), ", "),
		Remedy: "make it a member of " + schema + "_viewer, a role of schema.GrantRoles (outbox roles apply, " +
			"again after a migration), or give it USAGE on the schema and SELECT on its tables"}}
}

func namesOf(all []check) (out []string) {
	for _, c := range all {
		for _, p := range c.all() {
			out = append(out, p.name)
		}
	}
	return out
}

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

const versionsSQL = `/* outbox: versions that were applied */
SELECT COALESCE(max(m.version), 0), COALESCE(max(COALESCE(m.oldest_version, m.version)), 0),
       (SELECT COALESCE(string_agg(n::text, ', ' ORDER BY n), '')
          FROM generate_series(1, (SELECT max(version) FROM outbox.migration)) AS n
         WHERE NOT EXISTS (SELECT 1 FROM outbox.migration a WHERE a.version = n))
  FROM outbox.migration m`

// versions reads the newest version, the oldest code that may run beside it, and what was left out.
func (v *visit) versions(ctx context.Context) (newest, oldest int, missing string, err error) {
	err = v.row(ctx, versionsSQL, nil, &newest, &oldest, &missing)
	return newest, oldest, missing, err
}

// said is a duration, rounded to a precision that people need.
func said(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// plural is a number with its noun: 1 task, 2 tasks. A plural without -s is given too.
func plural[N int | int64](n N, noun string, nouns ...string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, append(nouns, noun+"s")[0])
}

var plain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// asJSON is a value without anything that encoding/json refuses, as an argument of a statement.
func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}
