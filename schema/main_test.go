package schema

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// open is a pool of the test's own. Each pair of a setting and its value is set for all its
// connections.
func open(t testing.TB, address string, settings ...string) *sql.DB {
	t.Helper()
	db, _ := watched(t, address, settings...)
	return db
}

// watched is open with a driver that the test can watch and disturb.
func watched(t testing.TB, address string, settings ...string) (*sql.DB, *watch) {
	t.Helper()
	u, err := url.Parse(address)
	noErr(t, err)
	q := u.Query()
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	u.RawQuery = q.Encode()
	connector, err := pq.NewConnector(u.String())
	noErr(t, err)
	w := &watch{Connector: connector}
	db := sql.OpenDB(w)
	t.Cleanup(func() { _ = db.Close() })
	return db, w
}

// noErr ends the test unless err is nil.
func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// migrated is a pool of a new database that has the outbox.
func migrated(t *testing.T, opts ...Option) *sql.DB {
	t.Helper()
	if len(opts) == 0 {
		return open(t, pgtest.Prepared(t, prepareMigrated))
	}
	db := open(t, pgtest.Database(t))
	migrate(t, db, opts...)
	return db
}

func prepareMigrated(url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	return Migrate(context.Background(), db)
}

// original is migrated with no template that it could be a copy of.
func original(t *testing.T) *sql.DB {
	t.Helper()
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	return db
}

// run sends statements on one connection, in one transaction unless they say otherwise.
func run(t *testing.T, db *sql.DB, statements string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statements); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// scan reads one value.
func scan[T any](t *testing.T, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, query string, args ...any) (value T) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

func migrate(t *testing.T, db *sql.DB, opts ...Option) {
	t.Helper()
	noErr(t, Migrate(t.Context(), db, opts...))
}

// begin runs a statement in a transaction that stays open until release is called, at the latest at
// the test's end.
func begin(t *testing.T, db *sql.DB, statement string) (release func()) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	noErr(t, err)
	release = func() { _ = tx.Rollback() }
	t.Cleanup(release)
	if _, err := tx.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return release
}

// newRole creates a role without rights in the database of admin, for the connection setting
// "role".
func newRole(t *testing.T, admin *sql.DB) string {
	t.Helper()
	name := "outbox_test_" + strings.ToLower(rand.Text())
	run(t, admin, "CREATE ROLE "+name)
	t.Cleanup(func() {
		if _, err := admin.Exec("DROP OWNED BY " + name + "; DROP ROLE " + name); err != nil {
			t.Errorf("drop role %s: %v", name, err)
		}
	})
	return name
}

// files replaces the migrations of a Migrate. It has no functions, which may need later tables.
func files(texts ...string) Option {
	return option(func(s *settings) { s.files, s.present = texts, present{functions: "-- none\n"} })
}

// second makes a second version that can be applied only once.
func second(statements string) string {
	return statements + `;
ALTER TABLE outbox.relay ADD COLUMN second integer;
INSERT INTO outbox.migration (version) VALUES (2);`
}

func first() string { return migrations()[0] }

// watch is lib/pq's connector with what happens on its connections on record. Its functions may be
// called by several connections at once; nil ones do nothing.
type watch struct {
	driver.Connector
	rewrite func(string) string // of the statements
	done    func(string, error) // after each statement

	mu     sync.Mutex
	sent   []string // statements, without those that begin and end transactions
	alone  []string // those of sent that ran outside of a transaction
	faults []string // what a pooler cannot give, and what could cut a COMMIT short
}

func (w *watch) record(list *[]string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*list = append(*list, text)
}

// writes are the statements that were sent, but for reads and settings.
func (w *watch) writes() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent {
		text := s
		if strings.HasPrefix(text, "--") {
			_, text, _ = strings.Cut(text, "\n")
		}
		reads := strings.HasPrefix(text, "SELECT ") && !strings.Contains(text, ";")
		if !reads && !strings.HasPrefix(s, "SET LOCAL ") {
			out = append(out, s)
		}
	}
	return out
}

func (w *watch) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedConn{pqConn: c.(pqConn), watch: w}, nil
}

// pqConn is what a connection of lib/pq has.
type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type watchedConn struct {
	pqConn
	watch *watch
	inTx  bool
}

func (c *watchedConn) note(query string, args []driver.NamedValue) string {
	w := c.watch
	w.record(&w.sent, query)
	if !c.inTx {
		w.record(&w.alone, query)
	}
	if len(args) > 0 {
		w.record(&w.faults, "parameters: "+query)
	}
	if w.rewrite != nil {
		query = w.rewrite(query)
	}
	return query
}

func (c *watchedConn) result(query string, err error) error {
	if c.watch.done != nil {
		c.watch.done(query, err)
	}
	return err
}

func (c *watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	query = c.note(query, args)
	r, err := c.pqConn.ExecContext(ctx, query, args)
	return r, c.result(query, err)
}

func (c *watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	query = c.note(query, args)
	r, err := c.pqConn.QueryContext(ctx, query, args)
	return r, c.result(query, err)
}

func (c *watchedConn) Prepare(query string) (driver.Stmt, error) {
	c.watch.record(&c.watch.faults, "prepare: "+query)
	return nil, errors.New("prepared statements are not for poolers")
}

func (c *watchedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if ctx.Done() != nil {
		c.watch.record(&c.watch.faults, "a transaction that ends with its context")
	}
	tx, err := c.pqConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return &watchedTx{tx, c}, nil
}

type watchedTx struct {
	driver.Tx
	conn *watchedConn
}

func (t *watchedTx) Rollback() error {
	t.conn.inTx = false
	return t.Tx.Rollback()
}

func (t *watchedTx) Commit() error {
	t.conn.inTx = false
	return t.Tx.Commit()
}
