package schema

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
)

// Check returns nil if code of this [Version] may run beside the schema, in a database with the
// encoding UTF8, on a server that is supported: the schema is at Version, or it is newer and its
// migrations say that this code may run beside them. [Inspect] says which. It only reads, so it may
// run on a standby; it needs USAGE on the schema and SELECT on its table migration. It does not look
// at the other tables.
//
// Errors: ErrNotMigrated, ErrNewer, ErrUnsupportedServer, ErrUnsupportedEncoding or, if row level
// security hides the versions, ErrRowSecurity; an invalid name before any SQL; or else the query's
// own. With a pool, as a *sql.DB, it reads in a transaction, and ErrStatementPooling is possible.
func Check(ctx context.Context, q Querier, opts ...SchemaOption) error {
	_, err := Inspect(ctx, q, opts...)
	return err
}

// State has the versions of a schema and its server.
//
// Experimental: a minor version may change it.
type State struct {
	// Version is the newest migration that was applied, 0 for none.
	Version int
	// OldestVersion is the oldest code that may run beside the schema: code whose [Version] is lower
	// gets ErrNewer. It is 0 where no migration was applied.
	OldestVersion int
	// Server is the server's version in its own words, as "18.1".
	Server string
	// UntestedServer is true for a major version of PostgreSQL that is newer than the tested ones.
	UntestedServer bool
}

// Inspect returns the versions of the schema and its server, and the error of [Check], for a log
// record that the schema or the server is newer than this code. With an error the State is filled
// as far as it is known.
//
// Experimental: a minor version may change it.
func Inspect(ctx context.Context, q Querier, opts ...SchemaOption) (State, error) {
	name, err := nameOf(opts)
	if err != nil {
		return State{}, err
	}
	if p, ok := q.(pool); ok {
		return inspectPool(ctx, p, name)
	}
	found, err := inspect(ctx, q, name, Version())
	switch {
	case err != nil:
	case found.Version < Version():
		err = fmt.Errorf("%w: the schema %q is at version %d, this code needs %d: run schema.Migrate",
			ErrNotMigrated, name, found.Version, Version())
	case found.Version == Version() && found.renamed(name):
		err = fmt.Errorf("%w: the schema %q was renamed: its functions work on the schema %q: run schema.Migrate",
			ErrNotMigrated, name, found.target)
	case found.Version == Version() && found.present != current().hashes(name):
		err = fmt.Errorf("%w: the schema %q is at version %d, but its functions are of other code: run schema.Migrate",
			ErrNotMigrated, name, found.Version)
	}
	return found.State, err
}

// inspectPool reads in a transaction, as a pooler may have none.
func inspectPool(ctx context.Context, p pool, name string) (State, error) {
	tx, err := p.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return State{}, pgerr.Within("schema: begin", explainBegin(ctx, p, pgerr.WithoutDSN(err)))
	}
	defer func() { _ = tx.Rollback() }() // it has written nothing
	return Inspect(ctx, tx, Schema(name))
}

// found is what is in a schema.
type found struct {
	State
	table   bool // there is a table of versions
	present applied
	target  string // the schema that the functions work on; "" is not known
}

// renamed reports whether the functions of the schema work on another one, as after ALTER SCHEMA
// RENAME: their texts name it.
func (f found) renamed(name string) bool { return f.target != "" && f.target != name }

// A table that another process has just made is seen by to_regclass, and not yet by the snapshot: it has no row of
// pg_attribute, not even of a system column, and counts as the outbox's.
// The caller's search_path may have types, functions and views of the catalogs' names before
// pg_catalog.
const serverSQL = `-- schema: server, encoding and migration table
SELECT current_setting('server_version_num'), current_setting('server_version'), current_database(),
       current_setting('server_encoding'), pg_catalog.to_regclass('outbox.migration') IS NOT NULL,
       COALESCE((SELECT pg_catalog.string_agg(attname, ' ' ORDER BY attname) FROM pg_catalog.pg_attribute
                  WHERE attrelid = pg_catalog.to_regclass('outbox.migration') AND NOT attisdropped
                    AND attname IN ('version', 'applied_at', 'functions')),
                CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                                       WHERE attrelid = pg_catalog.to_regclass('outbox.migration'))
                     THEN 'applied_at functions version' ELSE '' END),
       NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                    WHERE attrelid = pg_catalog.to_regclass('outbox.migration') AND NOT attisdropped
                      AND atttypid <> CASE attname WHEN 'version' THEN 'pg_catalog.int4'::pg_catalog.regtype
                        WHEN 'applied_at' THEN 'pg_catalog.timestamptz'::pg_catalog.regtype
                        WHEN 'functions' THEN 'pg_catalog.text'::pg_catalog.regtype END),
       pg_catalog.to_regclass('outbox.counter_log') IS NOT NULL`

// inspect reads what is in a schema. It refuses servers as readServer does, and versions that code
// whose newest migration is newest may not run beside. The name must be valid. The statements have no
// parameters, for poolers that change connections between them.
func inspect(ctx context.Context, q Querier, name string, newest int) (f found, err error) {
	f, err = readServer(ctx, q, name)
	if err != nil || !f.table {
		return f, err
	}
	err = f.readVersion(ctx, q, name, newest)
	if err == nil && f.Version == 0 {
		err = hidden(ctx, q, name, "'migration'")
	}
	return f, err
}

// readServer refuses a server that is too old, a database whose encoding is not UTF8, and a migration
// table that is another's or from before the first release. It takes no lock on that table.
func readServer(ctx context.Context, q Querier, name string) (f found, err error) {
	var number int
	var database, encoding, columns string
	var typed, before bool
	err = q.QueryRowContext(ctx, rename(serverSQL, name)).
		Scan(&number, &f.Server, &database, &encoding, &f.table, &columns, &typed, &before)
	if err != nil {
		return f, fmt.Errorf("schema: look for %s.migration: %w", name, needs(reading, pgerr.WithoutDSN(err)))
	}
	if err := checkServer(number, f.Server); err != nil {
		return f, err
	}
	f.UntestedServer = number/10000 > newestServer
	switch {
	case encoding != "UTF8":
		err = fmt.Errorf("%w: the database %q has the encoding %s, the outbox needs UTF8: "+
			"create a database with TEMPLATE template0 ENCODING 'UTF8', and move the data there",
			ErrUnsupportedEncoding, database, encoding)
	case f.table && columns == "applied_at version" && typed && before:
		err = fmt.Errorf("%w: the schema %q is from before the first release, and cannot be migrated: "+
			"rename it, which keeps its tasks for code of that time, and run schema.Migrate for a new one", ErrNotMigrated, name)
	case f.table && (columns != "applied_at functions version" || !typed):
		err = foreignError(name, "table migration")
	}
	return f, err
}

const reading = "USAGE on the schema and SELECT on its table migration"

// A migration that does not name the oldest code is for code that knows it.
const versionSQL = `-- schema: version
SELECT coalesce(max(version), 0), coalesce(max(coalesce(oldest_version, version)), 0),
       coalesce((SELECT functions FROM outbox.migration ORDER BY version DESC LIMIT 1), ''),
       coalesce((SELECT relations FROM outbox.migration WHERE relations IS NOT NULL ORDER BY version DESC LIMIT 1), ''),
       coalesce((SELECT pg_catalog.substring(prosrc, 'INSERT INTO "?([a-z0-9_]+)"?[.]task') FROM pg_catalog.pg_proc
                  WHERE proname = 'enqueue_task' AND pronamespace = pg_catalog.to_regnamespace('outbox') LIMIT 1), '')
  FROM outbox.migration`

// readVersion reads the newest applied version, the oldest code that may run beside it, and the
// hashes of its functions, views and triggers. It refuses a schema that this code may not run
// beside, and a renamed one whose functions are of newer code.
func (f *found) readVersion(ctx context.Context, q Querier, name string, newest int) error {
	err := q.QueryRowContext(ctx, rename(versionSQL, name)).
		Scan(&f.Version, &f.OldestVersion, &f.present.functions, &f.present.relations, &f.target)
	if err != nil {
		return fmt.Errorf("schema: read %s.migration: %w", name, needs(reading, err))
	}
	switch {
	case f.Version > newest && f.OldestVersion > newest:
		return fmt.Errorf("%w: the schema %q is at version %d, which needs code that knows version %d; this code knows %d: "+
			"after a rollback run the newer code again, or do what its changelog says; else upgrade the module",
			ErrNewer, name, f.Version, f.OldestVersion, newest)
	case f.Version > newest && f.renamed(name):
		return fmt.Errorf("%w: the schema %q was renamed: its functions work on the schema %q, and are of version %d; "+
			"this code knows %d: have the newer code run schema.Migrate", ErrNotMigrated, name, f.target, f.Version, newest)
	}
	return nil
}

// The major versions of PostgreSQL that are tested. Newer ones are let pass.
const (
	oldestServer = 14
	newestServer = 18
)

// checkServer refuses servers by server_version_num; text is how they call themselves.
func checkServer(number int, text string) error {
	if number/10000 < oldestServer {
		return fmt.Errorf("%w: it is PostgreSQL %s, the outbox needs %d or newer", ErrUnsupportedServer, text, oldestServer)
	}
	return nil
}

// Querier is what [Check] needs: *sql.DB, *sql.Conn and *sql.Tx have it, and those of sqlx.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// pool is a *sql.DB or a *sqlx.DB: neither transactions nor connections have SetMaxOpenConns.
type pool interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	PingContext(ctx context.Context) error
	SetMaxOpenConns(n int)
}

// These find the objects that the migrations make. The statements are ours, so they need not be
// parsed in full.
var (
	makes    = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|SEQUENCE|INDEX|FUNCTION) (?:IF NOT EXISTS )?(?:outbox\.)?(\w+)`)
	comments = regexp.MustCompile(`--[^\n]*`)
)

// made are the names of the relations and functions that the files make, for an array in SQL.
func made(files []string) (relations, functions string) {
	var r, f []string
	for _, text := range files {
		for _, m := range makes.FindAllStringSubmatch(comments.ReplaceAllString(text, ""), -1) {
			if m[1] == "FUNCTION" {
				f = append(f, m[2])
			} else {
				r = append(r, m[2])
			}
		}
	}
	slices.Sort(r)
	slices.Sort(f)
	return strings.Join(slices.Compact(r), ","), strings.Join(slices.Compact(f), ",")
}

// One snapshot shows the objects, and that there is no migration table: another process that migrates
// meanwhile commits it with them. A type of a table's name is in its way.
const foreignSQL = `-- schema: objects that have the outbox's names
SELECT coalesce(string_agg(o.what, ', ' ORDER BY o.what), '')
  FROM (SELECT CASE c.relkind WHEN 'i' THEN 'index' WHEN 'I' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' WHEN 'm' THEN 'view'
                              WHEN 'c' THEN 'type' ELSE 'table' END || ' ' || c.relname AS what
          FROM pg_class c WHERE c.relnamespace = to_regnamespace('outbox') AND c.relname = ANY ('{%[1]s}')
         UNION SELECT 'type ' || t.typname FROM pg_type t
          WHERE t.typnamespace = to_regnamespace('outbox') AND t.typname = ANY ('{%[1]s}') AND t.typtype IN ('d', 'e', 'r')
         UNION SELECT 'function ' || p.proname FROM pg_proc p
          WHERE p.pronamespace = to_regnamespace('outbox') AND p.proname = ANY ('{%[2]s}')) AS o
 WHERE NOT EXISTS (SELECT FROM pg_class m WHERE m.relnamespace = to_regnamespace('outbox') AND m.relname = 'migration')`

// checkForeign refuses a schema without a migration table in which there are objects of the names
// that the migrations use: an app's own table task would be taken for the outbox's.
func (s *settings) checkForeign(ctx context.Context, q Querier) error {
	relations, functions := made(append(slices.Clone(s.files), s.present.functions, s.present.relations))
	var names string
	err := q.QueryRowContext(ctx, rename(fmt.Sprintf(foreignSQL, relations, functions), s.name)).Scan(&names)
	if err != nil {
		return fmt.Errorf("look for objects of the outbox's names: %w", pgerr.WithoutDSN(err))
	}
	if names == "" {
		return nil
	}
	return foreignError(s.name, names)
}

const mostNamed = 5

// foreignError names the objects that prevent the migration.
func foreignError(name, objects string) error {
	if all := strings.Split(objects, ", "); len(all) > mostNamed {
		objects = fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), len(all)-mostNamed)
	}
	return fmt.Errorf("%w: the schema %q has objects that are not the outbox's, and have its names: %s: "+
		"give the outbox a schema of its own by schema.Schema, or rename them", ErrNotMigrated, name, objects)
}

var createsTable = regexp.MustCompile(`CREATE TABLE IF NOT EXISTS outbox\.(\w+)`)

// tables are the names of the outbox's tables, as an SQL list.
var tables = sync.OnceValue(func() string {
	var names []string
	for _, text := range migrations() {
		for _, m := range createsTable.FindAllStringSubmatch(text, -1) {
			names = append(names, "'"+m[1]+"'")
		}
	}
	return strings.Join(names, ", ")
})

// A role sees no row if row level security is active for it and no policy lets it. Policies that let
// it see some rows are the app's to judge. Commands that the role has no right to are not asked for,
// and the versions and the audit log are only read and added to.
const hiddenSQL = `-- schema: tables whose rows are hidden
SELECT current_user, COALESCE(pg_catalog.string_agg(c.relname, ', ' ORDER BY c.relname), '')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = '%s' AND c.relname IN (%s) AND pg_catalog.row_security_active(c.oid)
   AND EXISTS (
     SELECT 1 FROM (VALUES ('r', 'SELECT'), ('w', 'UPDATE'), ('d', 'DELETE')) AS k (command, privilege)
      WHERE (k.command = 'r' OR c.relname NOT IN ('migration', 'audit'))
        AND CASE k.command WHEN 'd' THEN pg_catalog.has_table_privilege(c.oid, 'DELETE')
              ELSE pg_catalog.has_any_column_privilege(c.oid, k.privilege) END
        AND NOT EXISTS (
          SELECT 1 FROM pg_catalog.pg_policy p
           WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', k.command::pg_catalog."char")
             AND (0::pg_catalog.oid = ANY (p.polroles)
               OR EXISTS (SELECT 1 FROM pg_catalog.unnest(p.polroles) AS r (role)
                           WHERE pg_catalog.pg_has_role(r.role, 'USAGE')))))`

// CheckRowSecurity returns nil unless row level security hides all rows of a table of the outbox
// from the role, or keeps it from changing them. Relays call it at their start and every half
// minute: to a role that sees nothing, an outbox looks idle.
//
// Owners of the tables (without FORCE ROW LEVEL SECURITY), superusers and roles with BYPASSRLS see
// all rows. Rows that a policy of the app's hides are not looked for.
//
// Errors: ErrRowSecurity, which names tables and role and says what to do; an invalid name before any
// SQL; or else the query's own.
func CheckRowSecurity(ctx context.Context, q Querier, opts ...SchemaOption) error {
	name, err := nameOf(opts)
	if err != nil {
		return err
	}
	return hidden(ctx, q, name, tables())
}

// hidden looks at the tables of an SQL list.
func hidden(ctx context.Context, q Querier, name, of string) error {
	var role, found string
	err := q.QueryRowContext(ctx, fmt.Sprintf(hiddenSQL, name, of)).Scan(&role, &found)
	if err != nil {
		return fmt.Errorf("schema: look for row level security: %w", pgerr.WithoutDSN(err))
	}
	if found == "" {
		return nil
	}
	first, rest, _ := strings.Cut(found, ", ")
	and, at := "", name
	if name != schemaname.Default {
		at = quote(name)
	}
	if rest != "" {
		and = ", and likewise for " + rest
	}
	return fmt.Errorf("%[1]w: row level security hides rows of %[2]s.%[3]s from the role %[4]q: as the table's owner, "+
		`ALTER TABLE %[2]s.%[3]s DISABLE ROW LEVEL SECURITY, or CREATE POLICY outbox ON %[2]s.%[3]s TO %[5]s USING (true) WITH CHECK (true)%[6]s`,
		ErrRowSecurity, at, first, role, quote(role), and)
}
