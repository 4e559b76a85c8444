// Package schema holds the outbox's database schema as SQL files, and applies them: numbered
// migrations, which make and change tables, and the functions, views and triggers as they are now.
//
// [Migrate] is made for the start of an app: call it from every process, as often as you like. For
// psql and tools for migrations [FS] has the same files, for goose as
//
//	goose.NewProvider(goose.DialectPostgres, db, schema.FS(), goose.WithTableName("goose_outbox_version"))
//
// with a table of versions of their own, as the app's numbers are its own; examples/migrate has
// them for golang-migrate. [SQL] is one script, also for a schema of another name. Files that a tool
// applied and those that Migrate applied are the same to [Migrate] and [Check]. There is no way back
// down: a newer version adds to what is there.
package schema

import "context"

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
