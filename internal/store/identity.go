package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
)

// Identity is that of the outbox, as it was read last. Its methods are safe for concurrent use.
type Identity struct{ databaseID atomic.Pointer[string] }

// DatabaseID is a UUID; "" before it was read.
func (i *Identity) DatabaseID() string {
	if id := i.databaseID.Load(); id != nil {
		return *id
	}
	return ""
}

// Set notes what was read, unless nothing was. An adopted copy has another one.
func (i *Identity) Set(databaseID string) {
	if databaseID != "" && databaseID != i.DatabaseID() {
		i.databaseID.Store(&databaseID)
	}
}

const identitySQL = `/* outbox: read the database's identity */
SELECT COALESCE((SELECT database_id::text FROM outbox.identity), '')`

// ReadIdentity reads the database's identity.
func (s *Store) ReadIdentity(ctx context.Context, tx *sql.Tx) error {
	var databaseID string
	if err := tx.QueryRowContext(ctx, s.SQL(identitySQL)).Scan(&databaseID); err != nil {
		return fmt.Errorf("relay: read the database's identity: %w", err)
	}
	s.Identity.Set(databaseID)
	return nil
}
