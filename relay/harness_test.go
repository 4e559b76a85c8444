package relay_test

import (
	"context"
	"database/sql"
	"os"
	"slices"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// What these tests use of relaytest, by shorter names.

type (
	payload = relaytest.Payload
	running = relaytest.Running
	records = relaytest.Records
)

var (
	typeTx     = relaytest.TypeTx
	typeBatch  = relaytest.TypeBatch
	typeLeased = relaytest.TypeLeased

	all          = relaytest.All
	leased       = relaytest.Leased
	effect       = relaytest.Effect
	txEffect     = relaytest.TxEffect
	batchEffect  = relaytest.BatchEffect
	leasedEffect = relaytest.LeasedEffect

	eventually = relaytest.Eventually
	constant   = relaytest.Constant
	retrySoon  = relaytest.RetrySoon
)

// registerTx is relaytest.Tx.
func registerTx[P any](r *handlers.Registry, t outbox.TaskType[P],
	h func(ctx context.Context, tx *sql.Tx, task *outbox.Task[P]) error, opts ...handlers.Option) {
	relaytest.Tx(r, t, h, opts...)
}

// database is one of relaytest, with methods of these tests.
type database struct{ *relaytest.Database }

func newDatabase(t testing.TB, driver ...string) *database {
	t.Helper()
	return &database{relaytest.NewDatabase(t, driver...)}
}

func open(t testing.TB, url string, driver ...string) *database {
	t.Helper()
	return &database{relaytest.Open(t, url, driver...)}
}

// direct is open for what needs a session.
func direct(t testing.TB, url string, driver ...string) *database {
	t.Helper()
	return &database{relaytest.Direct(t, url, driver...)}
}

// adopt is newDatabase with an empty database that is there already.
func adopt(t testing.TB, url string) *database {
	t.Helper()
	return &database{relaytest.Adopt(t, url)}
}

func run(t testing.TB, db *database, reg *handlers.Registry, config relay.Config) *running {
	t.Helper()
	return relaytest.Run(t, db.DB, reg, config)
}

func prepare(t testing.TB, db *database, reg *handlers.Registry, config relay.Config) *running {
	t.Helper()
	return relaytest.Prepare(t, db.DB, reg, config)
}

func once(t testing.TB, db *database, reg *handlers.Registry, config relay.Config) string {
	t.Helper()
	return relaytest.Once(t, db.DB, reg, config)
}

// doNothing is a handler of any kind.
func doNothing(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return nil }

// registerKind is relaytest.Register, with another kind: "group" is Tx whose tasks share
// transactions.
func registerKind[P any](reg *handlers.Registry, kind, taskType string, size int, h relaytest.Handle[P],
	opts ...handlers.Option) {
	if kind == "group" {
		kind, opts = "tx", append(slices.Clip(opts), handlers.GroupCommit(size, within))
	}
	relaytest.Register(reg, kind, taskType, size, h, opts...)
}

// noted is what handlers or other callbacks of a test saw, in the order of their calls.
type noted[T any] struct {
	mu  sync.Mutex
	all []T
}

func (n *noted[T]) add(one T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, one)
}

func (n *noted[T]) list() []T {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// together runs the test of each case, all at the same time.
func together[C any](t *testing.T, cases map[string]C, test func(t *testing.T, name string, c C)) {
	t.Helper()
	tests := map[string]func(*testing.T){}
	for name, c := range cases {
		tests[name] = func(t *testing.T) { test(t, name, c) }
	}
	relaytest.Together(t, tests)
}

// drivers are those that a test runs on whose outcome depends on the driver: how a handler's
// misdeeds and a broken connection
// show. It is the one that OUTBOX_TEST_DRIVER names, lib/pq by default, or both with OUTBOX_TEST_LONG=1.
var drivers = func() []string {
	if os.Getenv("OUTBOX_TEST_DRIVER") == "" && relaytest.Long {
		return []string{"postgres", "pgx"}
	}
	return []string{relaytest.DriverName()}
}()

// onEachDriver runs a test on a database of its own with each driver.
func onEachDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			test(t, newDatabase(t, driver))
		})
	}
}
