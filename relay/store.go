package relay

import "github.com/txoutbox/outbox/internal/pg"

// store names the outbox's schema and sends statements, for one run of a relay.
type store struct {
	schema  pg.Schema
	relayID string
	conns   *pg.Pool
}

// sql puts the schema's name into a statement, which is written for the schema "outbox".
func (s *store) sql(query string) string { return s.schema.SQL(query) }
