package store

import (
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
