package schema

import (
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/writable"
)

// What [Check] and [Migrate] find wrong. The error that wraps one of these says what was found.
var (
	// ErrNotMigrated: the schema or its migration table is missing, or older than this code; the
	// schema was renamed since; or objects that are not the outbox's have its names.
	ErrNotMigrated = errors.New("schema: the outbox is not migrated")
	// ErrNewer: a newer version of this module migrated the schema, and this code may not run beside
	// it.
	ErrNewer = errors.New("schema: the outbox is newer than this code")
	// ErrUnsupportedServer: the server is older than PostgreSQL 14.
	ErrUnsupportedServer = errors.New("schema: unsupported server")
	// ErrUnsupportedEncoding: the database's encoding is not UTF8.
	ErrUnsupportedEncoding = errors.New("schema: unsupported encoding")
	// ErrStatementPooling: no transaction is possible, as a pooler gives each statement a connection
	// of its own.
	ErrStatementPooling = errors.New("schema: each BEGIN ends the connection, as PgBouncer does in statement mode: " +
		"set pool_mode to transaction or session for this database and user, or connect to PostgreSQL itself")
	// ErrReadOnly: the setting default_transaction_read_only is on.
	ErrReadOnly = writable.ErrReadOnly
	// ErrRowSecurity: row level security hides rows of the outbox from the role.
	ErrRowSecurity = errors.New("schema: rows are hidden")
)

// needs adds to the server's permission error what the role needs; other errors stay as they are.
func needs(what string, err error) error {
	if pgerr.Code(err) == "42501" { // insufficient_privilege
		return fmt.Errorf("%w (the role needs %s)", err, what)
	}
	return err
}
