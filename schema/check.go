// Package schema holds the outbox's database schema as numbered SQL files, and applies them.
//
// [Migrate] is made for the start of an app: call it from every process, as often as you like. Who
// would rather use psql or a tool for migrations finds the same files in [Files], for goose as
//
//	goose.NewProvider(goose.DialectPostgres, db, schema.Files, goose.WithTableName("goose_outbox_version"))
//
// with a table of versions of their own, as the app's numbers are its own; examples/migrate has
// them for golang-migrate. [SQL] is one script for a schema of another name. It makes no difference
// to [Migrate] and [Check] who applied them. There is no way back down: a newer version adds to
// what is there.
package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// Querier is what [Check] needs: *sql.DB, *sql.Conn and *sql.Tx have it, and those of sqlx.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Check returns nil if the schema of that name is at [Version], in a database with the encoding
// UTF8, on a server that is supported. It only reads, so it may run on a standby; it needs USAGE on
// the schema and SELECT on its table migration. It does not look at the other tables.
//
// Errors: ErrNotMigrated, ErrNewer, ErrUnsupportedServer, ErrUnsupportedEncoding or, if row level
// security hides the versions, ErrRowSecurity; an invalid name before any SQL; or else the query's own.
func Check(ctx context.Context, q Querier, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	found, err := read(ctx, q, name, Version())
	if err != nil {
		return err
	}
	if found.version < Version() {
		return fmt.Errorf("%w: the schema %q is at version %d, this code needs %d: run schema.Migrate", ErrNotMigrated, name, found.version, Version())
	}
	return nil
}

// CheckWritable returns nil if a transaction may write unless it says otherwise. [Migrate], when
// there is something to do, and relays at their start call it.
//
// Errors: ErrReadOnly, one that says that the server is a standby, or else the query's own.
func CheckWritable(ctx context.Context, q Querier) error {
	var standby, readOnly bool
	var role, database string
	err := q.QueryRowContext(ctx, `-- schema: whether transactions may write
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean, current_user, current_database()`).
		Scan(&standby, &readOnly, &role, &database)
	switch {
	case err != nil:
		return fmt.Errorf("schema: look whether transactions may write: %w", pgerr.WithoutDSN(err))
	case standby:
		return errors.New("schema: the server is a standby, which is read-only: connect to the primary")
	case readOnly:
		return fmt.Errorf("%w: default_transaction_read_only is on for the role %q in the database %q: "+
			"reset it for the role, the database or the server, or take it out of the connection string",
			ErrReadOnly, role, database)
	}
	return nil
}

// state is what a schema is found to be.
type state struct {
	version int  // the newest that was applied, 0 for none
	table   bool // the migration table exists
}

// read finds a schema's state; it refuses a server that this code does not know, a database whose
// encoding is not UTF8, and a version below the baseline or above newest. The name must be valid.
// The statements have no parameters, for poolers that change connections between them.
func read(ctx context.Context, q Querier, name string, newest int) (state, error) {
	var found state
	var number int
	var server, database, encoding string
	err := q.QueryRowContext(ctx, `-- schema: server, encoding and migration table
SELECT current_setting('server_version_num'), current_setting('server_version'), current_database(), current_setting('server_encoding'), to_regclass('`+quote(name)+`.migration') IS NOT NULL`).
		Scan(&number, &server, &database, &encoding, &found.table)
	if err != nil {
		return state{}, fmt.Errorf("schema: look for %s.migration: %w", name, needs(reading, pgerr.WithoutDSN(err)))
	}
	if err := checkServer(number, server); err != nil {
		return state{}, err
	}
	if encoding != "UTF8" {
		return state{}, fmt.Errorf("%w: the database %q has the encoding %s, the outbox needs UTF8: "+
			"create a database with TEMPLATE template0 ENCODING 'UTF8', and move the data there",
			ErrUnsupportedEncoding, database, encoding)
	}
	if !found.table {
		return found, nil
	}
	if found.version, err = readVersion(ctx, q, name, newest); err == nil && found.version == 0 {
		err = hidden(ctx, q, name, "'migration'")
	}
	return found, err
}

const reading = "USAGE on the schema and SELECT on its table migration"

// readVersion reads the newest applied version and refuses one that is older than the baseline or
// newer than this code's.
func readVersion(ctx context.Context, q Querier, name string, newest int) (version int, err error) {
	err = q.QueryRowContext(ctx, `-- schema: version
SELECT coalesce(max(version), 0) FROM `+quote(name)+`.migration`).Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("schema: read %s.migration: %w", name, needs(reading, err))
	}
	if 0 < version && version < baseline {
		return 0, fmt.Errorf("%w: the schema %q is at version %d, from before the first release, and cannot be migrated: "+
			"drop the schema, with the tasks in it, and start anew", ErrNotMigrated, name, version)
	}
	if version > newest {
		return 0, fmt.Errorf("%w: the schema %q is at version %d, this code knows %d: upgrade the module", ErrNewer, name, version, newest)
	}
	return version, nil
}

// The supported major versions of PostgreSQL.
const (
	oldestServer = 14
	newestServer = 18
)

// checkServer refuses servers by server_version_num; text is how they call themselves.
func checkServer(number int, text string) error {
	if major := number / 10000; major < oldestServer || major > newestServer {
		return fmt.Errorf("%w: it is PostgreSQL %s, supported are %d to %d", ErrUnsupportedServer, text, oldestServer, newestServer)
	}
	return nil
}
