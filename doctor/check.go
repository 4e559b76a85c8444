package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// Check looks at everything and returns what it found, the worst first. A check that found nothing wrong returns one finding with the severity OK; one that
// could not look, for want of rights, by its timeout, or as the schema is too old for it, one with Unknown. So no check is missing from the result, whatever
// became of the others.
//
// It needs one connection of db at a time, on lib/pq or pgx's stdlib driver, directly or through PgBouncer in transaction mode; each check is a read-only
// transaction of its own. It runs on a standby, on a schema of any version, and where there is none (the finding is schema-version). As a role it needs what
// an operator or a viewer of schema.GrantRoles has; with pg_monitor besides, it sees other roles' sessions, standbys and slots in full.
//
// Errors: ErrInvalid; else that no connection was to be had, or that ctx has ended, with what was found until then.
func Check(ctx context.Context, db *sql.DB, opts ...Option) ([]Finding, error) {
	s, err := newSettings(opts)
	if err == nil && db == nil {
		err = fmt.Errorf("%w: the *sql.DB is nil", ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, c := range checks {
		f, err := s.run(ctx, db, c)
		found = append(found, f...)
		if err != nil {
			return sorted(found), refused(err)
		}
	}
	return sorted(found), nil
}

// refused is the error of a connection that is not to be had.
func refused(err error) error {
	if pgerr.Code(err) == "53300" {
		return fmt.Errorf("doctor: connect: %w: max_connections, or the limit of the role or of the database, is reached; end sessions or make pools smaller (a superuser may still get in)", pgerr.WithoutDSN(err))
	}
	return fmt.Errorf("doctor: connect: %w", pgerr.WithoutDSN(err))
}

// sorted keeps the order of the checks among findings that are as bad.
func sorted(found []Finding) []Finding {
	slices.SortStableFunc(found, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return found
}

// checks are all that there are, in the order in which they are shown.
var checks = []check{
	{look: checkVersion, needs: "USAGE on the schema and SELECT on its table migration", passed: []passed{
		{"schema-version", "the schema is of the version that this program needs"}}},
	{look: checkObjects, needs: "USAGE on the schema and SELECT on its table migration", passed: []passed{
		{"schema-objects", "all tables, views, sequences and functions are there"},
		{"indexes", "all indexes are there and valid"},
		{"triggers", "all triggers are there and enabled"}}},
	{look: checkRoles, needs: "USAGE on the schema", passed: []passed{{"roles", "the roles have the rights that this version gives them, or there are none"}}},
	{look: checkServer, passed: []passed{
		{"server-version", "the server's version is supported"},
		{"encoding", "the database's encoding is UTF8"},
		{"primary", "the server is a primary"},
		{"durability", "fsync and full_page_writes are on, and commits wait for the disk"}}},
	{look: checkSettings, bare: true, needs: "USAGE on the schema", passed: []passed{
		{"session-settings", "no timeout or mode of the roles, the database or the server is in the relays' way"}}},
	{look: checkAutovacuum, passed: []passed{{"autovacuum", "it is on, with the outbox's settings for its tables"}}},
	{look: checkDeadRows, passed: []passed{{"dead-rows", "autovacuum keeps up"}}},
	{look: checkHolders, needs: "pg_monitor", passed: []passed{
		{"held-transaction", "no session has held a transaction open for long"},
		{"prepared-transaction", "no prepared transaction is old"},
		{"replication-slot", "no slot keeps dead rows"},
		{"standby-feedback", "no standby keeps dead rows"}}},
	{look: checkLocks, passed: []passed{{"lock-wait", "nobody locks the outbox's tables, or waits for a lock on them"}}},
	{look: checkWraparound, passed: []passed{{"wraparound", "transaction ids are far from running out"}}},
	{look: checkNotifications, passed: []passed{{"notification-queue", "the queue of notifications is empty, or nearly so"}}},
	{look: checkConnections, passed: []passed{{"connections", "the server has connections to give"}}},
	{look: checkTasks, needs: "USAGE on the schema and SELECT, as viewers have it, on its tables", passed: []passed{
		{"relays", "relays are alive, and the dead ones hold nothing"},
		{"relay-pool", "the pools of the relays are large enough, as far as it is known, and the server can serve them"},
		{"unhandled-type", "there is a relay for each type with tasks"},
		{"paused-type", "no type with tasks is paused"},
		{"starving-type", "no type waits for longer than it should"}}},
	{look: checkMaintenance, needs: "USAGE on the schema and SELECT on its tables maintenance and relay", passed: []passed{
		{"maintenance", "the relays do it in time"}}},
	{look: checkSchedules, needs: "USAGE on the schema and SELECT, as viewers have it, on its table schedule", passed: []passed{
		{"schedules", "they fire in time"}}},
	{look: checkDeadLetters, needs: "USAGE on the schema and SELECT, as viewers have it, on its tables dead_task, counter and counter_log", passed: []passed{
		{"dead-letters", "there are none"}}},
	{look: checkIndexBloat, passed: []passed{{"index-bloat", "no index is much larger than its entries"}}},
	{look: checkClock, passed: []passed{{"clock", "the server's clock and this process's agree"}}},
}

// check looks for some faults with the same statements. A new one is written in a file of its noun and added to checks.
type check struct {
	look   func(ctx context.Context, v *visit) error
	needs  string // what right a role may lack
	passed []passed
	bare   bool // its statement reads settings, so none is set before it; it reads catalogs only
}

// passed is what is said where a check finds nothing.
type passed struct{ name, what string }

// visit is one look, in its transaction.
type visit struct {
	settings
	tx    *sql.Tx
	found []Finding
}

func (v *visit) add(check string, severity Severity, subject, what, do string) {
	v.found = append(v.found, Finding{check, severity, subject, what, do})
}

const mostFindings = 20 // of one check

// run looks. Only what no other check could do without is an error: a connection.
func (s settings) run(ctx context.Context, db *sql.DB, c check) ([]Finding, error) {
	bounded, cancel := context.WithTimeout(ctx, 3*s.timeout+10*time.Second) // the server's timeout comes first
	defer cancel()
	tx, err := db.BeginTx(bounded, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return c.unknown(err, s.schema), err
	}
	defer func() { _ = tx.Rollback() }() // it has written nothing
	v := &visit{settings: s, tx: tx}
	// Without statistics the planner takes reading a whole table of tasks for cheap.
	if ms := s.timeout.Milliseconds(); !c.bare {
		set := fmt.Sprintf("SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d", ms, max(ms/2, 1)) // to tell a lock from a busy server
		_, err = tx.ExecContext(bounded, set+"; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL enable_seqscan = off; SET LOCAL jit = off")
	}
	if err == nil {
		err = c.look(bounded, v)
	}
	if ctx.Err() != nil {
		return v.found, context.Cause(ctx)
	}
	if err != nil {
		return append(v.found, c.unknown(err, s.schema)...), nil
	}
	return c.complete(v.found), nil
}

// complete says of each name that nothing was found, or shortens what is too much.
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
			of = []Finding{{Check: p.name, What: p.what}}
		case len(of) > mostFindings:
			more := Finding{Check: p.name, Severity: of[mostFindings].Severity,
				What: fmt.Sprintf("there are %d more findings like these", len(of)-mostFindings), Do: "as above"}
			of = append(of[:mostFindings], more)
		}
		out = append(out, of...)
	}
	return out
}

// unknown is what is said where a look was refused. The server's texts are left out, as they may repeat values.
func (c check) unknown(err error, schema string) (out []Finding) {
	what, do := "not checked: "+pgerr.WithoutDSN(err).Error(), ""
	switch code := pgerr.Code(err); code {
	case "":
		if errors.Is(err, context.DeadlineExceeded) {
			what = "not checked: the server did not answer in time"
		}
	case "42501":
		what = "not checked: the role lacks a right"
		if c.needs != "" {
			do = "give it " + c.needs
		}
		if strings.HasPrefix(c.needs, "USAGE") { // what the outbox's own roles have
			do = "make it a member of " + schema + "_viewer, a role of schema.GrantRoles (outbox roles apply), or " + do
		}
	case "57014":
		what, do = "not checked: it took longer than its timeout", "try again with a longer one, and look for what keeps the server busy"
	case "55P03":
		what, do = "not checked: somebody holds a lock on a table of the outbox", "see lock-wait and held-transaction"
	case "42P01", "42703", "42883", "3F000":
		what, do = "not checked: the schema does not have what it needs", "see schema-version"
	default:
		what = "not checked: the server refused it, with SQLSTATE " + code
	}
	for _, p := range c.passed {
		out = append(out, Finding{Check: p.name, Severity: Unknown, What: what, Do: do})
	}
	return out
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

// age is a duration of microseconds, as it is said.
func age(us int64) string { return said(time.Duration(us) * time.Microsecond) }

func said(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// plural is "1 task", "2 tasks".
func plural[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
