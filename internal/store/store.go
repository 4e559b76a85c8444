// Package store is a task's row, and the statements that change it. It knows no handler.
//
//	Row      a claimed task: all that is needed to write it back
//	Change   what becomes of a task that is not done: WriteBack, WriteDead, RecordAside
//	Journal  the runs that have begun, in outbox.running, on a connection of its own
//	Store    the schema's name, the relay's id and the pool that statements go through
//
// Judge says what the journal's rows of earlier runs mean for a claimed task:
//
//	fresh ──> run
//	suspect ──> run, isolated from others by how many runs were lost
//	postponed ──> scheduled again, until heartbeats have decided
//	dead ──> dead letters
//
// A row of the journal is written between claim and handler and deleted by the claim's end:
//
//	Record ──> written ──claim ends────────> gone
//	              │──connection lost──────> marked: no attempt
//	              `──relay dies───────────> lost: an attempt, found by the next claim
package store

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
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

// Execer is a transaction: *sql.Tx or exclusive.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

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

const countSQL = `/* outbox: count what no trigger sees */
INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT count(*), t, $2 FROM unnest($1::text[]) t GROUP BY t`

// Count adds runs or tasks of these types, as often as a type is there, to the totals of a kind.
func (s *Store) Count(ctx context.Context, tx Execer, kind string, types []string) error {
	if len(types) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, s.SQL(countSQL), pq.Array(types), kind)
	return err
}

// CountClaimed is a statement that counts ready tasks as claimed, which a group has claimed so far
// without counting them.
func (s *Store) CountClaimed(taskType string, n int) string {
	return s.SQL("INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (") + strconv.Itoa(-n) + ", " + pq.QuoteLiteral(taskType) + ", 'ready')"
}

// A wake-up request is the second until which an idle relay wants a NOTIFY with each insert. It is
// in a sequence, which has no row versions and no snapshot. One that lies hours ahead was written while
// the server's clock was, and counts as none.
const requestWakeUpSQL = `/* outbox: request wake-ups */
SELECT setval('outbox.wake', GREATEST((SELECT last_value FROM outbox.wake WHERE last_value < extract(epoch FROM clock_timestamp()) + 7200),
                                      ceil(extract(epoch FROM clock_timestamp()) + $1::bigint / 1e6)::bigint)), ` + pg.CommitAsync

// A relay that was woken or found work withdraws the request, unless another relay has set a later
// one. The others that may still rely on it learn of that by the payload, and request wake-ups
// again if they are idle.
const withdrawWakeUpSQL = `/* outbox: withdraw the request for wake-ups */
SELECT setval('outbox.wake', 0), pg_notify($1, $3), ` + pg.CommitAsync + ` FROM outbox.wake WHERE last_value BETWEEN 1 AND $2 OR last_value > extract(epoch FROM clock_timestamp()) + 7200`

// RequestWakeUp sets the wake-up request so far ahead and returns it.
func (s *Store) RequestWakeUp(ctx context.Context, conn pg.Querier, ahead time.Duration) (until int64, err error) {
	err = conn.QueryRowContext(ctx, s.SQL(requestWakeUpSQL), ahead.Microseconds()).Scan(&until, new(string))
	return until, err
}

// WithdrawWakeUp takes the request back, unless another relay has set a later one.
func (s *Store) WithdrawWakeUp(ctx context.Context, conn pg.Querier, until int64) error {
	_, err := conn.ExecContext(ctx, s.SQL(withdrawWakeUpSQL), string(s.Schema), until, s.RelayID)
	return err
}

// NewUUID is a random (version 4) UUID.
func NewUUID() string {
	high, low := rand.Uint64()&^(0xf<<12)|4<<12, rand.Uint64()&^(3<<62)|2<<62
	const digits = "0123456789abcdef"
	var b [36]byte
	for i, at := range [...]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		octet := byte(high >> (56 - 8*(i%8)))
		if i >= 8 {
			octet = byte(low >> (56 - 8*(i%8)))
		}
		b[at], b[at+1] = digits[octet>>4], digits[octet&0xf]
	}
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}
