package store

import (
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// Store names the outbox's schema and sends statements, for one run of a relay.
type Store struct {
	Schema   pg.Schema
	RelayID  string
	Conns    *pg.Pool
	Identity *Identity
	Ahead    time.Duration // a test's clock is ahead by so much; else 0
}

// SQL puts the schema's name into a statement, which is written for the schema "outbox".
func (s *Store) SQL(query string) string { return s.Schema.SQL(query) }

// Identity is that of the database, as it was read last. Its methods are safe for concurrent use.
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
