package schema

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// State has the versions of a schema and its server.
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
func Inspect(ctx context.Context, q Querier, name string) (State, error) {
	if err := checkName(name); err != nil {
		return State{}, err
	}
	if p, ok := q.(pool); ok {
		return inspectPool(ctx, p, name)
	}
	state, _, err := read(ctx, q, name, Version())
	if err == nil && state.Version < Version() {
		err = fmt.Errorf("%w: the schema %q is at version %d, this code needs %d: run schema.Migrate", ErrNotMigrated, name, state.Version, Version())
	}
	return state, err
}

// inspectPool reads in a transaction, as a pooler may have none.
func inspectPool(ctx context.Context, p pool, name string) (State, error) {
	tx, err := p.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return State{}, fmt.Errorf("schema: begin: %w", explainBegin(ctx, p, pgerr.WithoutDSN(err)))
	}
	defer func() { _ = tx.Rollback() }() // it has written nothing
	return Inspect(ctx, tx, name)
}

// A table that another process has just made is seen by to_regclass, and not yet by the snapshot.
const serverSQL = `-- schema: server, encoding and migration table
SELECT current_setting('server_version_num'), current_setting('server_version'), current_database(), current_setting('server_encoding'),
       to_regclass('outbox.migration') IS NOT NULL,
       NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass('outbox.migration') AND 2 <>
         (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
             AND (a.attname, a.atttypid) IN (('version', 'integer'::regtype), ('applied_at', 'timestamptz'::regtype))))`

// read returns a schema's state, and whether it has a migration table. It refuses servers as
// readServer does, and versions that code whose newest migration is newest may not run beside. The
// name must be valid. The statements have no parameters, for poolers that change connections between
// them.
func read(ctx context.Context, q Querier, name string, newest int) (state State, table bool, err error) {
	state, table, err = readServer(ctx, q, name)
	if err != nil || !table {
		return state, table, err
	}
	state.Version, state.OldestVersion, err = readVersion(ctx, q, name, newest)
	if err == nil && state.Version == 0 {
		err = hidden(ctx, q, name, "'migration'")
	}
	return state, true, err
}

// readServer refuses a server that is too old, a database whose encoding is not UTF8, and a migration
// table that is another's. It takes no lock on that table.
func readServer(ctx context.Context, q Querier, name string) (state State, table bool, err error) {
	var number int
	var database, encoding string
	var ours bool
	err = q.QueryRowContext(ctx, rename(serverSQL, name)).Scan(&number, &state.Server, &database, &encoding, &table, &ours)
	if err != nil {
		return state, false, fmt.Errorf("schema: look for %s.migration: %w", name, needs(reading, pgerr.WithoutDSN(err)))
	}
	if err := checkServer(number, state.Server); err != nil {
		return state, table, err
	}
	state.UntestedServer = number/10000 > newestServer
	if encoding != "UTF8" {
		return state, table, fmt.Errorf("%w: the database %q has the encoding %s, the outbox needs UTF8: "+
			"create a database with TEMPLATE template0 ENCODING 'UTF8', and move the data there",
			ErrUnsupportedEncoding, database, encoding)
	}
	if !ours {
		return state, table, foreignError(name, "table migration")
	}
	return state, table, nil
}

const reading = "USAGE on the schema and SELECT on its table migration"

// versionSQL works before the migration that added oldest_version, too. A migration that does not
// say it is for code that knows it.
const versionSQL = `-- schema: version
SELECT coalesce(max(version), 0), coalesce(max(coalesce((to_jsonb(m) ->> 'oldest_version')::integer, version)), 0) FROM outbox.migration m`

// readVersion reads the newest applied version and the oldest code that may run beside it. It refuses
// a schema that is older than the baseline, and one that this code may not run beside.
func readVersion(ctx context.Context, q Querier, name string, newest int) (version, oldest int, err error) {
	err = q.QueryRowContext(ctx, rename(versionSQL, name)).Scan(&version, &oldest)
	if err != nil {
		return 0, 0, fmt.Errorf("schema: read %s.migration: %w", name, needs(reading, err))
	}
	if 0 < version && version < baseline {
		err = fmt.Errorf("%w: the schema %q is at version %d, from before the first release, and cannot be migrated: "+
			"drop the schema, with the tasks in it, and start anew", ErrNotMigrated, name, version)
	}
	if version > newest && oldest > newest {
		err = fmt.Errorf("%w: the schema %q is at version %d, which needs code that knows version %d; this code knows %d: upgrade the module",
			ErrNewer, name, version, oldest, newest)
	}
	return version, oldest, err
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
