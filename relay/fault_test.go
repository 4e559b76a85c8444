package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// victim is a relay with one kind of handler whose driver fails.
type victim struct {
	name       string
	kind       string
	tasks      int  // of each round
	failsFirst bool // the first attempt of each task

	db     *database
	faulty *faulty
	todo   []struct {
		call string
		fault
	}
}

func victims() []*victim {
	return []*victim{
		{name: "tx", kind: "tx", tasks: 1},
		{name: "tx_fails_first", kind: "tx", tasks: 1, failsFirst: true},
		{name: "batch", kind: "batch", tasks: 3},
		{name: "batch_fails_in_part", kind: "batch", tasks: 2, failsFirst: true},
		{name: "leased", kind: "complete", tasks: 1},
		{name: "leased_fails_first", kind: "complete", tasks: 1, failsFirst: true},
	}
}

// attempt is the one that succeeds, without faults.
func (v *victim) attempt() int {
	if v.failsFirst {
		return 2
	}
	return 1
}

func (v *victim) handle(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
	failed := handlers.BatchResult{}
	for _, task := range tasks {
		failing := v.failsFirst && task.Attempt == 1
		if failing {
			failed[task.ID] = errAlways
		}
		if !failing || v.kind != "batch" { // what fails in part of a batch has no effect
			if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
				return err
			}
		}
	}
	if v.kind == "batch" && len(failed) > 0 {
		return failed
	}
	return failed[tasks[0].ID]
}

// Every fourth driver call of a claim fails once, with OUTBOX_TEST_LONG=1 each in each way. No
// effect of a failed handler is committed, none of a successful one twice, no task is lost, no
// attempt is counted that says nothing about the task, and the relay works on: I1, I3, I6.
func TestAnyFailureOfAnyDriverCallLeavesEachTaskWithOneEffect(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	all := victims()
	rounds := 0
	for _, v := range all {
		v.open(t)
		rounds = max(rounds, len(v.todo))
	}
	for round := range rounds { // all at the same time, as most of it is waiting
		var busy []*victim
		for _, v := range all {
			if round < len(v.todo) {
				busy = append(busy, v)
				v.faulty.arm(v.todo[round].call, v.todo[round].fault)
				v.enqueue(t)
			}
		}
		for _, v := range busy {
			v.check(t, v.todo[round].call, v.todo[round].fault)
		}
	}
}

// open starts the relay and finds out which calls there are, by four rounds without faults.
func (v *victim) open(t *testing.T) {
	v.db = newDatabase(t, "postgres")
	v.faulty = &faulty{}
	pool := v.db.through(t, v.faulty.wrap)
	reg := handlers.New()
	relaytest.Register(reg, v.kind, typeTx.Name(), 10, v.handle, retrySoon())
	told := &heard{}
	t.Cleanup(func() { told.balanced(t) }) // after the relay
	run(t, pool, reg, relay.Config{PollInterval: 50 * time.Millisecond, Observers: told.observers()})
	v.enqueue(t)
	v.db.Emptied(t, 20*time.Second)
	v.faulty.record()
	var calls map[string]bool // in each of three rounds
	for range 3 {
		v.enqueue(t)
		v.db.Emptied(t, 20*time.Second)
		round := v.faulty.record()
		if calls == nil {
			calls = round
		}
		maps.DeleteFunc(calls, func(call string, _ bool) bool { _, made := round[call]; return !made })
	}
	v.db.Do(t, `TRUNCATE effect`)
	maps.DeleteFunc(calls, func(call string, _ bool) bool {
		return slices.ContainsFunc(ownTimes, func(s string) bool { return strings.Contains(call, s) })
	})
	for i, call := range slices.Sorted(maps.Keys(calls)) {
		ways := faults
		if !relaytest.Long { // each time another one
			ways = faults[i%len(faults):][:1]
		}
		for _, f := range ways {
			v.todo = append(v.todo, struct {
				call string
				fault
			}{call, f})
		}
	}
	v.todo = relaytest.Part(v.todo, len(v.todo)/8)
}

// ownTimes are in calls that come at times of their own, not with each task.
var ownTimes = []string{"connect", "ping", "see how the pool made a session", "ROLLBACK after outbox: claim",
	"heartbeat", "dead relays", "relays are dead", "no living relay", "have no row", "ran out", "reap", "take over",
	"wake-ups", "promote scheduled",
	"maintenance", "fold", "sample", "purge", "that are gone", "page of unique keys", "rows are hidden",
	"what became of running tasks", "compare", "nobody runs", "left over", "request to cancel", "canceled tasks"}

func (v *victim) enqueue(t *testing.T) {
	v.db.Enqueue(t, typeTx.Name(), v.tasks)
}

func (v *victim) check(t *testing.T, call string, f fault) {
	name := fmt.Sprintf("%s, %s: %v", v.name, call, f)
	eventually(t, 30*time.Second, name+": the tasks are done", func() bool {
		return v.faulty.fired() && v.db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	most := v.attempt()
	// What comes with the handler's own statement may be its doing, and right after it in a Complete. An
	// SQLSTATE at the end may be that of another server, by a trigger. A server that has become a
	// standby has no transaction left to commit: only a trigger of the app's can say 25006 then.
	atEnd := strings.Contains(call, "outbox: end a claim")
	if !f.infrastructure() || f.code == "25006" && strings.HasPrefix(call, "COMMIT") ||
		strings.HasPrefix(call, "INSERT") || atEnd && (f.code != "" || v.kind == "complete") {
		most++
	}
	got := v.db.Text(t, `SELECT string_agg(task_id || ' in attempt ' || attempt, ', ') FROM effect`)
	if n := v.db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt BETWEEN $1 AND $2`, v.attempt(),
		most); n != v.tasks || v.db.Int(t, `SELECT count(*) FROM effect`) != v.tasks {
		t.Errorf("%s: effects of %s; want one of %d tasks in attempt %d to %d", name, got, v.tasks, v.attempt(), most)
	}
	if n := v.db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Fatalf("%s: a dead letter\n%s", name, v.db.Dump(t))
	}
	v.db.Do(t, `TRUNCATE effect`)
}

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
