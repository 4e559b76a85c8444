package rights_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var groups = []string{"owner", "enqueuer", "worker", "viewer", "operator"}

// granted is an outbox with its roles, and one role for each that can log in and is a member of it;
// stranger is a member of none.
type granted struct {
	url, schema string
	admin       *sql.DB
	as          map[string]*sql.DB
	urls        map[string]string
}

func grant(t *testing.T, address, name string) *granted {
	t.Helper()
	g := &granted{url: address, schema: name, admin: openURL(t, address), as: map[string]*sql.DB{},
		urls: map[string]string{}}
	noErr(t, schema.Migrate(t.Context(), g.admin, schema.Schema(name)))
	dropGroups(t, g.admin, name)
	noErr(t, schema.GrantRoles(t.Context(), g.admin, schema.Schema(name)))
	unique := "roles_test_" + strings.ToLower(rand.Text()) + "_"
	for _, group := range append([]string{"stranger"}, groups...) {
		role, password := unique+group, rand.Text()
		g.do(t, "CREATE ROLE "+role+" LOGIN PASSWORD '"+password+"'")
		t.Cleanup(func() { g.do(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
		if group != "stranger" {
			g.do(t, `GRANT "`+name+"_"+group+`" TO `+role)
		}
		u, err := url.Parse(address)
		noErr(t, err)
		u.User = url.UserPassword(role, password)
		g.urls[group] = u.String()
		g.as[group] = openURL(t, u.String())
	}
	return g
}

// dropGroups drops the roles at the test's end, with what they own in this database.
func dropGroups(t *testing.T, admin *sql.DB, name string) {
	t.Cleanup(func() {
		for _, group := range groups {
			role := `"` + name + "_" + group + `"`
			if _, err := admin.Exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role); err != nil {
				t.Errorf("drop role %s: %v", role, err)
			}
		}
	})
}

// newName is a schema whose roles no other test has.
func newName() string { return "r_" + strings.ToLower(rand.Text()) }

func openURL(t *testing.T, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", address)
	noErr(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// noErr ends the test unless err is nil.
func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sql puts the schema's name into a statement.
func (g *granted) sql(statement string) string {
	return strings.ReplaceAll(statement, "outbox.", `"`+g.schema+`".`)
}

// do executes statements as a superuser.
func (g *granted) do(t *testing.T, statements string) {
	t.Helper()
	if _, err := g.admin.ExecContext(context.WithoutCancel(t.Context()), g.sql(statements)); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// Rows for all calls: a task that waits, one with a key, one of a dead relay, two dead letters, a
// finished task, a scheduled one, a schedule, an audit entry.
const fixture = `
TRUNCATE outbox.task, outbox.dead_task, outbox.done_task, outbox.cancel, outbox.running,
         outbox.unique_key, outbox.headless_key, outbox.schedule,
         outbox.task_type, outbox.counter, outbox.counter_log, outbox.audit, outbox.sample;
INSERT INTO outbox.task (task_id, task_type, payload) OVERRIDING SYSTEM VALUE VALUES (1001, 'A', '{"secret": 1}');
INSERT INTO outbox.task (task_id, task_type, payload, unique_key) OVERRIDING SYSTEM VALUE
VALUES (1002, 'A', '{}', 'taken');
INSERT INTO outbox.task (task_id, task_type, state, relay_id, lease_token) OVERRIDING SYSTEM VALUE
VALUES (1003, 'A', 'leased', '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002');
INSERT INTO outbox.task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
VALUES (1007, 'A', now() + interval '1 hour');
INSERT INTO outbox.audit (actor, tool, action) VALUES ('ada', 'test', 'try');
INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload,
       unique_key, ordering_key)
VALUES (1004, now(), now(), 0, 1, 1, 'attempts', 'A', '{"secret": 1}', 'old', NULL),
       (1005, now(), now(), 0, 1, 1, 'handler', 'A', '{}', '$payload:00', 'o');
INSERT INTO outbox.done_task (task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type,
       payload)
VALUES (1006, now(), now(), now(), now() + interval '1 hour', 0, 1, 'A', '{}');
INSERT INTO outbox.running (task_id, token, relay_id)
VALUES (1004, '00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000001');
INSERT INTO outbox.schedule (name, task_type, payload, timing, definition) VALUES ('nightly', 'A', '{}', '', '')`

// right is something that only some roles may do; the others get 42501.
type right struct {
	name    string
	may     string
	commits bool
	do      func(c call) error
}

// TestEachRoleMayDoWhatItIsForAndNothingElse tries every call of the library and many statements as
// a member of each role.
func TestEachRoleMayDoWhatItIsForAndNothingElse(t *testing.T) {
	t.Parallel()
	rights := slices.Concat(calls(), statements())
	for test, name := range map[string]string{"the schema outbox": "outbox", "a schema of another name": newName()} {
		t.Run(test, func(t *testing.T) {
			if name != "outbox" {
				needs.Long(t)
			}
			address := pgtest.Database(t)
			if name == "outbox" { // its roles must not meet those of another test process
				address = pgtest.Local(t, nil).URL()
			}
			g := grant(t, address, name)
			g.do(t, fixture)
			for _, r := range rights {
				for role, db := range g.as {
					err := r.try(t.Context(), g, db)
					if err == nil && r.commits {
						g.do(t, fixture)
					}
					may := slices.Contains(strings.Fields(r.may), role)
					if may && err != nil {
						t.Errorf("%s as %s: %v", r.name, role, err)
					}
					if !may && pgerr.Code(err) != "42501" {
						t.Errorf("%s as %s: got %v, want permission denied", r.name, role, err)
					}
				}
			}
		})
	}
}

// An operator selects waiting tasks by keys and payloads with a GRANT of docs/security.md, and is told
// what is missing without it.
func TestAnOperatorNeedsTheColumnsOfItsFilter(t *testing.T) {
	t.Parallel()
	g := grant(t, pgtest.Database(t), newName())
	g.do(t, fixture)
	operator := g.as["operator"]
	c, err := admin.New(operator, admin.Config{Schema: g.schema})
	noErr(t, err)
	f := admin.Filter{Payload: []byte(`{"secret": 1}`)}
	_, err = c.Cancel(t.Context(), f, admin.Bulk{})
	if err == nil || !strings.Contains(err.Error(), "needs the right to SELECT that column") {
		t.Errorf("without the right: %v", err)
	}
	var login string
	noErr(t, operator.QueryRowContext(t.Context(), `SELECT current_user`).Scan(&login))
	g.do(t, `GRANT SELECT (payload, unique_key, ordering_key, group_key) ON outbox.task TO `+login)
	noErr(t, schema.GrantRoles(t.Context(), g.admin, schema.Schema(g.schema)))
	for want, f := range map[int64]admin.Filter{1001: f, 1002: {UniqueKey: "taken", Type: "A"}} {
		if r, err := c.Cancel(t.Context(), f, admin.Bulk{}); err != nil || len(r.IDs) != 1 || r.IDs[0] != want {
			t.Errorf("%v: got %v, %v, want %d", f, r.IDs, err, want)
		}
	}
}

// GrantRoles gives a right back that was taken from a role, and takes one that was added.
func TestGrantRolesAgainSetsTheRightsRight(t *testing.T) {
	t.Parallel()
	g := grant(t, pgtest.Database(t), newName())
	g.do(t, fixture)
	rights := slices.Concat(calls(), statements())
	changes := []struct{ change, role, call string }{
		{"REVOKE INSERT (headers) ON outbox.task FROM", "enqueuer", "Enqueue with all options"},
		{"REVOKE EXECUTE ON FUNCTION outbox.enqueue_keyed FROM", "enqueuer", "Enqueue with Replace"},
		{"REVOKE SELECT ON SEQUENCE outbox.wake FROM", "worker", "SELECT last_value FROM outbox.wake"},
		{"REVOKE UPDATE ON SEQUENCE outbox.tail FROM", "viewer", "SELECT setval('outbox.tail', 0)"},
		{"REVOKE EXECUTE ON FUNCTION outbox.run_task_now FROM", "operator", "RunNow"},
		{"GRANT SELECT (payload) ON outbox.task TO", "viewer", "SELECT payload FROM outbox.task"},
		{"GRANT SELECT (payload) ON outbox.keyed_task TO", "worker", "SELECT payload FROM outbox.keyed_task"},
		{"GRANT EXECUTE ON FUNCTION outbox.adopt TO", "worker", "Adopt"},
	}
	for _, c := range changes {
		g.do(t, c.change+` "`+g.schema+"_"+c.role+`"`)
	}
	for _, again := range []bool{false, true} {
		if again {
			noErr(t, schema.GrantRoles(t.Context(), g.as["owner"], schema.Schema(g.schema)))
		}
		for _, c := range changes {
			i := slices.IndexFunc(rights, func(r right) bool { return r.name == c.call })
			may := slices.Contains(strings.Fields(rights[i].may), c.role) == again
			err := rights[i].try(t.Context(), g, g.as[c.role])
			if may && err != nil || !may && pgerr.Code(err) != "42501" {
				t.Errorf("%s %s, GrantRoles again: %v: %s: got %v", c.change, c.role, again, c.call, err)
			}
		}
	}
}

// The roles may be those of the version before: a tail names the remedy, and a relay runs all the same.
func TestWithoutTheRightToTheTailARelayRunsAndATailNamesTheRemedy(t *testing.T) {
	t.Parallel()
	g := grant(t, pgtest.Database(t), newName())
	g.do(t, fixture)
	for _, group := range []string{"worker", "viewer"} {
		g.do(t, `REVOKE ALL ON SEQUENCE outbox.tail FROM "`+g.schema+"_"+group+`"`)
	}
	rights := calls()
	for call, role := range map[string]string{"RunOnce": "worker", "Tail": "viewer"} {
		i := slices.IndexFunc(rights, func(r right) bool { return r.name == call })
		err := rights[i].try(t.Context(), g, g.as[role])
		if call == "RunOnce" && err != nil {
			t.Errorf("a relay: %v", err)
		}
		if call == "Tail" && (pgerr.Code(err) != "42501" || !strings.Contains(err.Error(), "outbox roles apply")) {
			t.Errorf("a tail: %v", err)
		}
	}
}

// The owner of all tables changes while transactions enqueue: none of these fails.
func TestGrantRolesEndsNoTransactionOfTheApp(t *testing.T) {
	needs.CI(t)
	admin := openURL(t, pgtest.Database(t))
	name := newName()
	noErr(t, schema.Migrate(t.Context(), admin, schema.Schema(name)))
	dropGroups(t, admin, name)
	in := outbox.Schema(name)
	enqueue := func(opts ...outbox.Option) error {
		return outbox.InTx(t.Context(), admin, func(tx *sql.Tx) error {
			for range 3 {
				if _, err := outbox.Enqueue(t.Context(), tx, "T", 1, append(opts, in)...); err != nil {
					return err
				}
			}
			_, err := outbox.Stats(t.Context(), tx, in)
			return err
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			opts := [][]outbox.Option{nil, {outbox.OrderedBy("o")}, {outbox.Unique(fmt.Sprint(i))},
				{outbox.After(time.Hour)}}[i%4]
			for ctx.Err() == nil {
				if err := enqueue(opts...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	err := schema.GrantRoles(t.Context(), admin, schema.Schema(name))
	stop()
	all.Wait()
	if err != nil {
		t.Error(err)
	}
}

// ALTER TABLE locks a table, then its sequence. An enqueue that held the sequence while it waits for the
// table would be a deadlock with each change of the schema.
func TestAnEnqueueThatWaitsForTheTableHoldsNothing(t *testing.T) {
	db := openURL(t, pgtest.Database(t))
	noErr(t, schema.Migrate(t.Context(), db))
	for about, opts := range map[string][]outbox.Option{"no option": nil, "an ordering key": {outbox.OrderedBy("o")},
		"a unique key": {outbox.Unique("u")}, "a delay": {outbox.After(time.Hour)}} {
		locker, err := db.BeginTx(t.Context(), nil)
		noErr(t, err)
		if _, err := locker.ExecContext(t.Context(), "LOCK TABLE outbox.task IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- outbox.InTx(t.Context(), db, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, "T", 1, opts...)
				return err
			})
		}()
		var waiter int
		relaytest.Eventually(t, time.Minute, "the enqueue waits", func() bool {
			err := db.QueryRowContext(t.Context(), `SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
				WHERE datname = current_database() AND relation = 'outbox.task'::regclass AND NOT granted`).Scan(&waiter)
			return err == nil
		})
		var held sql.NullString
		noErr(t, db.QueryRowContext(t.Context(), `SELECT string_agg(c.relname || ' ' || l.mode, ', ')
			  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			 WHERE l.pid = $1 AND l.granted AND c.relnamespace = 'outbox'::regnamespace`, waiter).Scan(&held))
		if held.Valid {
			t.Errorf("an enqueue with %s holds %s", about, held.String)
		}
		noErr(t, locker.Rollback())
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
