package schema

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

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

// Inspect is [Check] that also returns the State, for a log record that the schema or the server is
// newer than this code. With an error the State is filled as far as it is known.
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

// A table that another process has just made is seen by to_regclass, and not yet by the snapshot.
// The caller's search_path may have types, functions and views of the catalogs' names before
// pg_catalog.
const serverSQL = `-- schema: server, encoding and migration table
SELECT current_setting('server_version_num'), current_setting('server_version'), current_database(),
       current_setting('server_encoding'), pg_catalog.to_regclass('outbox.migration') IS NOT NULL,
       COALESCE((SELECT pg_catalog.string_agg(attname, ' ' ORDER BY attname) FROM pg_catalog.pg_attribute
                  WHERE attrelid = pg_catalog.to_regclass('outbox.migration') AND NOT attisdropped
                    AND attname IN ('version', 'applied_at', 'functions')), ''),
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
