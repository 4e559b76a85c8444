package relay_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"syscall"

	"github.com/lib/pq"
)

// fault is one failure of a driver call.
type fault struct {
	err    error  // what the driver says: the connection breaks; or
	code   string // the server refuses with this SQLSTATE
	after  bool   // err comes after the server carried the statement out
	intact bool   // err is the driver's own: the connection and its transaction are as before
}

func (f fault) String() string {
	switch {
	case f.code != "":
		return f.code
	case f.after:
		return fmt.Sprintf("%v, carried out", f.err)
	}
	return f.err.Error()
}

// infrastructure reports whether the fault says nothing about the task.
func (f fault) infrastructure() bool {
	return f.err != nil && !f.intact || f.code == "57P01" || f.code == "53300" || f.code == "25006"
}

var faults = []fault{
	{err: driver.ErrBadConn}, {err: driver.ErrBadConn, after: true}, {err: io.EOF, after: true},
	{err: timedOut}, {err: timedOut, after: true}, {err: context.Canceled}, {err: context.Canceled, after: true},
	{err: errors.New("there is already a query being processed on this connection"), intact: true},
	{code: "25P02"}, {code: "57014"}, {code: "40001"}, {code: "40P01"}, {code: "25006"}, {code: "57P01"}, {code: "53300"},
	{code: "53100"}, // the disk is full
}

// refusedConnection is a fault of the call connect alone.
var refusedConnection = fault{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}

// timedOut is a net.Error whose Timeout is true.
var timedOut error = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}

// faulty is a connector whose connections are real, and fail on request. Errors with an SQLSTATE come from the server,
// which is made to refuse the statement; so its transaction is in the state that belongs to the error.
type faulty struct {
	driver.Connector
	before map[string]func()                      // is called before a call
	each   func(ctx context.Context, call string) // before any call; may be nil
	sent   func(text string)                      // before any call; may be nil

	mu    sync.Mutex
	under map[string]*sync.RWMutex // held for reading by calls under way
	call  string                   // the call that fails next; "" is none
	trace []string                 // of the calls since armNth or record
	nth   int                      // of the calls from now on fails; 0 is none
	fault fault
}

// wrap makes the connector faulty.
func (f *faulty) wrap(real driver.Connector) driver.Connector {
	f.Connector = real
	return f
}

// arm lets the next call fail. One that is under way has ended then: it does not find what the test does next.
func (f *faulty) arm(call string, what fault) {
	under := f.underWay(call)
	under.Lock()
	defer under.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call, f.fault = call, what
}

// armNth lets the nth call from now on fail; 0 is none.
func (f *faulty) armNth(n int, what fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nth, f.fault, f.trace = n, what, []string{}
}

// calls are those since armNth.
func (f *faulty) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trace
}

func (f *faulty) underWay(call string) *sync.RWMutex {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.under == nil {
		f.under = map[string]*sync.RWMutex{}
	}
	if f.under[call] == nil {
		f.under[call] = &sync.RWMutex{}
	}
	return f.under[call]
}

func (f *faulty) fired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call == "" && f.nth == 0
}

// record begins to record calls and returns those up to now.
func (f *faulty) record() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[string]bool{}
	for _, call := range f.trace {
		seen[call] = true
	}
	f.trace = []string{}
	return seen
}

func (f *faulty) fails(call string) (fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trace != nil {
		f.trace = append(f.trace, call)
	}
	if f.nth > 0 {
		f.nth--
		return f.fault, f.nth == 0
	}
	if f.call != call {
		return fault{}, false
	}
	f.call = ""
	return f.fault, true
}

func (f *faulty) Connect(ctx context.Context) (driver.Conn, error) {
	what, yes := f.fails("connect")
	switch {
	case yes && what.code != "":
		refused := &pq.Error{Severity: "FATAL", Message: "injected"}
		setCode(&refused.Code, what.code)
		return nil, refused
	case yes && !what.after:
		return nil, what.err
	}
	conn, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if yes {
		_ = conn.Close()
		return nil, what.err
	}
	return &faultyConn{realConn: conn.(realConn), f: f}, nil
}

type realConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type faultyConn struct {
	realConn
	f      *faulty
	broken bool
	last   string // the latest call of the transaction
}

var (
	nameOfSQL  = regexp.MustCompile(`/\* (outbox: [^*]*) \*/`)
	varyingSQL = regexp.MustCompile(`ob_[0-9a-z]+|[0-9]+(,[0-9]+)*`)
)

// on makes a call, or lets it fail.
func (c *faultyConn) on(ctx context.Context, query string, do func() error) error {
	if c.broken {
		return driver.ErrBadConn
	}
	if c.f.sent != nil {
		c.f.sent(query)
	}
	call := varyingSQL.ReplaceAllString(query, "?")
	if m := nameOfSQL.FindStringSubmatch(query); m != nil {
		call = m[1]
	}
	if query == "COMMIT" || query == "ROLLBACK" {
		call += " after " + c.last
	}
	c.last = call
	if c.f.each != nil {
		c.f.each(ctx, call)
	}
	if first := c.f.before[call]; first != nil {
		first()
	}
	under := c.f.underWay(call)
	under.RLock()
	defer under.RUnlock()
	what, yes := c.f.fails(call)
	switch {
	case !yes:
		return do()
	case what.code != "":
		_, err := c.realConn.ExecContext(context.Background(),
			`DO $$ BEGIN RAISE 'injected' USING ERRCODE = '`+what.code+`'; END $$`, nil)
		if query == "COMMIT" || query == "ROLLBACK" {
			_, _ = c.realConn.ExecContext(context.Background(), "ROLLBACK", nil)
		}
		return err
	case what.intact:
		return what.err
	case what.after:
		if err := do(); err != nil {
			return err
		}
	}
	c.broken = true
	_ = c.realConn.Close()
	return what.err
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (result driver.Result,
	err error) {
	err = c.on(ctx, query, func() (err error) { result, err = c.realConn.ExecContext(ctx, query, args); return err })
	return result, err
}

func (c *faultyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows,
	err error) {
	err = c.on(ctx, query, func() (err error) { rows, err = c.realConn.QueryContext(ctx, query, args); return err })
	return rows, err
}

func (c *faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	err = c.on(ctx, "BEGIN", func() (err error) { tx, err = c.realConn.BeginTx(ctx, opts); return err })
	return &faultyTx{c, tx}, err
}

func (c *faultyConn) Ping(ctx context.Context) error {
	return c.on(ctx, "ping", func() error { return c.realConn.Ping(ctx) })
}

func (c *faultyConn) PrepareContext(ctx context.Context, query string) (stmt driver.Stmt, err error) {
	err = c.on(ctx, query, func() (err error) { stmt, err = c.realConn.PrepareContext(ctx, query); return err })
	return stmt, err
}

func (c *faultyConn) IsValid() bool { return !c.broken && c.realConn.IsValid() }

func (c *faultyConn) ResetSession(ctx context.Context) error {
	if c.broken {
		return driver.ErrBadConn
	}
	return c.realConn.ResetSession(ctx)
}

func (c *faultyConn) Close() error {
	if c.broken {
		return nil
	}
	return c.realConn.Close()
}

type faultyTx struct {
	c    *faultyConn
	real driver.Tx
}

func (t *faultyTx) Commit() error   { return t.c.on(context.Background(), "COMMIT", t.real.Commit) }
func (t *faultyTx) Rollback() error { return t.c.on(context.Background(), "ROLLBACK", t.real.Rollback) }

// setCode sets a SQLSTATE, whose type has another name in older versions of lib/pq.
func setCode[C ~string](c *C, code string) { *c = C(code) }
