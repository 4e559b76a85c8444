package store

import "sync/atomic"

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
