// Package writable tells whether a server and a role let transactions write.
package writable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// ErrReadOnly is schema.ErrReadOnly.
var ErrReadOnly = errors.New("schema: transactions are read-only by default")

// Check returns nil if a transaction may write unless it says otherwise. schema.Migrate, when there
// is something to do, and relays call it.
//
// Errors: ErrReadOnly, one that says that the server is a standby, or else the query's own.
func Check(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) error {
	var standby, readOnly bool
	var role, database string
	err := q.QueryRowContext(ctx, `-- schema: whether transactions may write
SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('default_transaction_read_only')::boolean,
       current_user, pg_catalog.current_database()`).
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
