// Package pg is how a relay talks to PostgreSQL: connections, transactions, messages, LISTEN, and
// outages. It knows no task.
//
//	Pool       lends connections to workers: InTx, InMessages; BeginSession for the app's code
//	Dedicated  is the one connection of a loop
//	Exclusive  is a connection that nobody else can use meanwhile
//	Listener   turns notifications into polls
//	Outage     paces the dispatcher while PostgreSQL is unavailable; Pace paces the other loops
//
// An outage begins with the first failure that is more than the end of single connections, and ends
// with the first success that began after it:
//
//	none --Fail--> pause --Wait over--> try --Fail--> pause …
//	                 |                   `----OK----> none
//	                 `--Hasten, EndPause: the pause ends soon
//
// A relay writes in a transaction or on a held connection, never through *sql.DB, which repeats a
// statement when its connection breaks.
package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// ConflictTries is how often a transaction is tried that conflicts with another one.
const ConflictTries = 3

const (
	beginTries = 4
	trusted    = time.Second // for how long an idle connection is believed to live without asking
	feedAgain  = 10 * time.Millisecond
)

// Pool keeps connections between two claims. database/sql would close most of them, as it keeps two
// idle ones by default. It is safe for concurrent use.
type Pool struct {
	db      *sql.DB
	several bool   // the driver takes several statements in one message; set by CheckDriver
	untimed string // see Untimed; set by CheckDriver
	login   atomic.Pointer[Login]
	closing sync.Once
	gone    chan struct{} // closed when the *sql.DB is known to be closed
	guarded atomic.Bool   // a connection has had settings that a relay cannot work with

	mu      sync.Mutex
	idle    []idleConn
	asking  []int64 // one for each call that asks the pool: its WaitCount at the call's begin, ascending
	feeding bool    // feed is called again soon
	closed  bool    // Put gives back to the *sql.DB: the run has ended

	sessions map[any]session // what is known, by the driver's connection

	releasing sync.WaitGroup
}

type idleConn struct {
	conn  *sql.Conn
	since time.Time
}

func NewPool(db *sql.DB) *Pool { return &Pool{db: db, gone: make(chan struct{})} }

// ErrPoolClosed: the app has closed the *sql.DB.
var ErrPoolClosed = errors.New("relay: the *sql.DB is closed: call Relay.Stop before DB.Close")

// ErrPoolBusy: no connection of the *sql.DB has become free.
var ErrPoolBusy = errors.New("relay: all connections of its *sql.DB are in use")

// dbClosed is the text of the error of database/sql, which has no name.
const dbClosed = "sql: database is closed"

// Gone is closed when a connection was asked of a closed *sql.DB, which no waiting mends.
func (p *Pool) Gone() <-chan struct{} { return p.gone }

// Login is the role of the pool's connections and their database.
type Login struct{ Role, Database string }

// Login is as CheckDriver saw it; zero if it has not succeeded yet.
func (p *Pool) Login() Login {
	if l := p.login.Load(); l != nil {
		return *l
	}
	return Login{}
}

// MaxConns is the limit of the *sql.DB; 0 is none.
func (p *Pool) MaxConns() int { return p.db.Stats().MaxOpenConnections }

// Untimed are statements that lift transaction_timeout, where the server has it, from a transaction
// of the app's code. A handler's own timeout bounds that. They go before the savepoint: a rollback
// to it would bring back the setting, which ends the connection.
func (p *Pool) Untimed() string { return p.untimed }

// Get lends a connection that lives. The caller gives it to Put or Drop.
func (p *Pool) Get(ctx context.Context) (*sql.Conn, error) {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			waits := p.db.Stats().WaitCount
			p.asking = append(p.asking, waits)
			p.mu.Unlock()
			conn, err := p.living(ctx)
			p.mu.Lock()
			i := slices.Index(p.asking, waits)
			p.asking = slices.Delete(p.asking, i, i+1)
			p.mu.Unlock()
			return conn, err
		}
		idle := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if (time.Since(idle.since) < trusted || idle.conn.PingContext(ctx) == nil) && reset(ctx, idle.conn) {
			boundReplies(idle.conn)
			return idle.conn, nil
		}
		Drop(idle.conn)
	}
}

// living takes a connection from the *sql.DB that lives. After a restart of the server each
// idle connection is dead, and each would be an error.
func (p *Pool) living(ctx context.Context) (*sql.Conn, error) {
	for tries := p.db.Stats().Idle + 2; ; tries-- {
		conn, err := p.db.Conn(ctx)
		if err != nil && err.Error() == dbClosed {
			p.closing.Do(func() { close(p.gone) })
			return nil, ErrPoolClosed
		}
		if err != nil {
			var busy error
			if err == context.DeadlineExceeded { // a dial's error is the driver's
				busy = p.Busy()
			}
			switch err = pgerr.WithoutDSN(err); {
			case busy != nil:
				err = pgerr.NoConnection(busy)
			case pgerr.Of(err) == pgerr.Foreign: // the driver's, or the app's connector's
				err = &net.OpError{Op: "connect", Err: err}
			case pgerr.Lasting(err) || pgerr.Code(err) != "" && !pgerr.Lost(err):
				err = pgerr.NoConnection(err)
			}
			return nil, err
		}
		if err = p.lives(ctx, conn); err == nil {
			boundReplies(conn)
			return conn, nil
		}
		Drop(conn)
		if tries <= 1 || !pgerr.Lost(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Busy is an ErrPoolBusy while a call of Get waits for the limit of the *sql.DB; else nil.
func (p *Pool) Busy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.db.Stats()
	if len(p.asking) == 0 || p.asking[0] >= s.WaitCount || s.InUse < s.MaxOpenConnections {
		return nil
	}
	u := UseOf(p.db)
	return fmt.Errorf("%w: %d of at most %d (SetMaxOpenConns), and the relays of this process on it (%d) need %d: "+
		"raise the limit, lower Config.Workers, or give each relay and the app a *sql.DB of its own", ErrPoolBusy, s.InUse,
		s.MaxOpenConnections, u.Relays, u.Conns)
}

// reset resets the session in the driver, as database/sql does before it lends a connection again.
// It reports whether the connection lives.
func reset(ctx context.Context, conn *sql.Conn) bool {
	err := conn.Raw(func(of any) error {
		if of, ok := of.(driver.SessionResetter); ok {
			return of.ResetSession(ctx)
		}
		return nil
	})
	return !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, sql.ErrConnDone)
}

// boundReplies limits the replies to BEGIN, COMMIT and ROLLBACK, which have no context, in a pool
// of pgdb.Open. ResetSession lifts the limit.
func boundReplies(conn *sql.Conn) {
	_ = conn.Raw(func(c any) error {
		if c, ok := c.(interface{ BoundReplies(time.Duration) }); ok {
			c.BoundReplies(replyTimeout)
		}
		return nil
	})
}

// Put takes a connection back whose session is as the pool made it.
func (p *Pool) Put(conn *sql.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return
	}
	p.idle = append(p.idle, idleConn{conn, time.Now()})
	p.feed()
}

// feed gives an idle connection to the *sql.DB if a call of Get may wait there for its limit: a
// wait has begun since that call did. A call that dials gets none, as the *sql.DB would close it:
// without WaitCount 16 workers dialled up to 27 times at their start. A call may begin to wait
// later, so feed is repeated while calls ask.
func (p *Pool) feed() {
	if n := len(p.idle); n > 0 && len(p.asking) > 0 && p.asking[0] < p.db.Stats().WaitCount {
		_ = p.idle[n-1].conn.Close()
		p.idle = p.idle[:n-1]
	}
	if p.feeding || len(p.idle) == 0 || len(p.asking) == 0 {
		return
	}
	p.feeding = true
	time.AfterFunc(feedAgain, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.feeding = false
		p.feed()
	})
}

// Close gives the idle connections back to the pool, also those that are put later.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Release()
	p.releasing.Wait()
}

// ReleaseSoon is Release in a goroutine, for which Close waits.
func (p *Pool) ReleaseSoon() { p.releasing.Go(p.Release) }

// Release gives the idle connections back to the pool.
func (p *Pool) Release() {
	for _, idle := range p.take() {
		_ = idle.conn.Close()
	}
}

// Discard closes the idle connections: one was dead, so the others may be dead.
func (p *Pool) Discard() {
	for _, idle := range p.take() {
		Drop(idle.conn)
	}
}

func (p *Pool) take() []idleConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := p.idle
	p.idle = nil
	return idle
}

// Drop closes the connection itself, in any state. One that is lent from another pool, as by
// outboxpgx.OpenDB, would go back to that.
func Drop(conn *sql.Conn) {
	_ = conn.Raw(func(c any) error {
		if c, ok := c.(interface{ Discard() }); ok {
			c.Discard()
		}
		return driver.ErrBadConn
	})
	_ = conn.Close()
}

// begin starts a READ COMMITTED transaction, which the end of ctx does not roll back: a rollback in
// the middle of a drain would run the task again. The caller ends it and then calls Put or Drop.
func (p *Pool) begin(ctx context.Context) (*sql.Conn, *sql.Tx, error) {
	for try := 1; ; try++ {
		conn, err := p.Get(ctx)
		if err != nil {
			return nil, nil, err
		}
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err == nil {
			return conn, tx, nil
		}
		Drop(conn)
		if try == beginTries || !pgerr.Lost(err) || pgerr.Code(err) != "" {
			return nil, nil, err
		}
	}
}

// InTx runs f in a transaction of the relay's own. Its error may be an unknown outcome, so f must
// be harmless when repeated.
func (p *Pool) InTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, StatementTimeout)
	defer cancel()
	conn, tx, err := p.begin(ctx)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, p.own()); err == nil {
		err = f(ctx, tx)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		_ = tx.Rollback()
		Drop(conn)
		return err
	}
	p.Put(conn)
	return nil
}

// Texts reads a result of one text column.
func Texts(rows *sql.Rows, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}

// One checks that a statement changed one row: a trigger of the app's could drop it.
func One(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n != 1 {
		err = fmt.Errorf("relay: the row was not written: %d rows instead of 1; is there a trigger on the outbox's tables?",
			n)
	}
	return err
}

// session is what a pool knows of a connection's session.
type session struct {
	restore string    // what puts it back
	asked   time.Time // for its settings
}

func (p *Pool) known(conn *sql.Conn) session {
	key := connKey(conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions[key]
}

func (p *Pool) know(conn *sql.Conn, learn func(*session)) {
	key := connKey(conn)
	if key == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[key]
	if p.sessions == nil || len(p.sessions) > 2*p.db.Stats().OpenConnections { // most are closed
		p.sessions = map[any]session{}
	}
	learn(&s)
	p.sessions[key] = s
}

// connKey identifies a connection; nil where the driver's is no pointer.
func connKey(conn *sql.Conn) (key any) {
	_ = conn.Raw(func(of any) error {
		if reflect.TypeOf(of).Kind() == reflect.Pointer {
			key = of
		}
		return nil
	})
	return key
}

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

// Millis is a duration as the server's settings take it; at least 1, as 0 would mean none.
func Millis(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

const (
	// StatementTimeout bounds each statement of the relay's own.
	StatementTimeout = 10 * time.Second
	// Bookkeeping bounds each statement, lock wait and idle moment of a claim's transaction outside
	// the handler.
	Bookkeeping = 10 * time.Second

	idleTimeout  = 15 * time.Second // of a transaction of the relay's own, each of whose statements follows at once
	replyTimeout = 30 * time.Second // to BEGIN, COMMIT and ROLLBACK; COMMIT may have to wait for a standby
)

// CommitAsync, evaluated by a statement, has its transaction commit without waiting for the disk or
// a synchronous standby. It is for work that is repeated if a crash of the server loses it. So
// liveness never waits for durability.
const CommitAsync = "set_config('synchronous_commit', 'off', true)"

// letGo has the server end the transaction of a relay that is frozen or gone, and its locks.
// Otherwise the server waits for hours. It is for transactions of more than one message.
var letGo = "SET LOCAL idle_in_transaction_session_timeout = " + Millis(idleTimeout)

// beginSQL begins a transaction as InTx does.
const beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"

// Schema is the name of the outbox's schema, one that schemaname.Valid takes.
type Schema string

// SQL puts the name into a statement, which is written for the schema "outbox". Statements name the
// schema everywhere, as a pooler may drop search_path.
func (s Schema) SQL(query string) string {
	if s == "outbox" {
		return query
	}
	return strings.ReplaceAll(query, "outbox.", `"`+string(s)+`".`)
}
