package schema

import (
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// What [Check], [CheckWritable] and [Migrate] find wrong. The error that wraps one of these says
// what was found.
var (
	// ErrNotMigrated: the schema or its migration table is missing, or older than this code.
	ErrNotMigrated = errors.New("schema: the outbox is not migrated")
	// ErrNewer: a newer version of this module migrated the schema.
	ErrNewer = errors.New("schema: the outbox is newer than this code")
	// ErrUnsupportedServer: the server is older or newer than the versions of PostgreSQL that are
	// tested.
	ErrUnsupportedServer = errors.New("schema: unsupported server")
	// ErrUnsupportedEncoding: the database's encoding is not UTF8.
	ErrUnsupportedEncoding = errors.New("schema: unsupported encoding")
	// ErrReadOnly: the setting default_transaction_read_only is on.
	ErrReadOnly = errors.New("schema: transactions are read-only by default")
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
