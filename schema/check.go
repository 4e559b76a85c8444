// Package schema holds the outbox's database schema as SQL files, and applies them: numbered
// migrations, which make and change tables, and the functions, views and triggers as they are now.
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
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// Check returns nil if code of this [Version] may run beside the schema of that name, in a database
// with the encoding UTF8, on a server that is supported: the schema is at Version, or it is newer
// and its migrations say that this code may run beside them. [Inspect] says which. It only reads, so
// it may run on a standby; it needs USAGE on the schema and SELECT on its table migration. It does
// not look at the other tables.
//
// Errors: ErrNotMigrated, ErrNewer, ErrUnsupportedServer, ErrUnsupportedEncoding or, if row level
// security hides the versions, ErrRowSecurity; an invalid name before any SQL; or else the query's
// own. With a pool, as a *sql.DB, it reads in a transaction, and ErrStatementPooling is possible.
func Check(ctx context.Context, q Querier, name string) error {
	_, err := Inspect(ctx, q, name)
	return err
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
