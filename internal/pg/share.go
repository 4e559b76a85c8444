package pg

import (
	"database/sql"
	"sync"
)

// Use is how many relays of this process run on a *sql.DB, and how many connections they need.
type Use struct{ Relays, Conns int }

var (
	usesMu sync.Mutex
	uses   = map[*sql.DB]Use{}
)

// UseOf is the present use of db.
func UseOf(db *sql.DB) Use {
	usesMu.Lock()
	defer usesMu.Unlock()
	return uses[db]
}

// Join adds a relay that needs so many connections of db, until leave is called. It returns the use
// before.
func Join(db *sql.DB, conns int) (others Use, leave func()) {
	usesMu.Lock()
	defer usesMu.Unlock()
	others = uses[db]
	uses[db] = Use{others.Relays + 1, others.Conns + conns}
	return others, func() {
		usesMu.Lock()
		defer usesMu.Unlock()
		if u := uses[db]; u.Relays > 1 {
			uses[db] = Use{u.Relays - 1, u.Conns - conns}
		} else {
			delete(uses, db)
		}
	}
}
