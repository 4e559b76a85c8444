package doctor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

type database = relaytest.Database

var (
	open       = relaytest.Open
	direct     = relaytest.Direct
	eventually = relaytest.Eventually
)

// ill is a migrated database whose invariants nobody checks at the end.
func ill(t testing.TB) *database {
	t.Helper()
	db := open(t, relaytest.Migrated(t))
	db.Do(t, `SELECT outbox.note_origin('')`) // as its first relay does
	return db
}

// local is a migrated database on a server of the test's own.
func local(t testing.TB, settings map[string]string) *database {
	t.Helper()
	server := pgtest.Local(t, settings)
	if err := relaytest.Migrate(server.URL()); err != nil {
		t.Fatal(err)
	}
	return direct(t, server.URL(), "postgres")
}

// again is another connection to the server.
func again(t testing.TB, db *database) *database { return direct(t, db.URL, "postgres") }

// destroys finds what cannot be undone.
var destroys = regexp.MustCompile(`(?i)\b(DROP|DELETE|TRUNCATE|ROLLBACK|purge|remove|pg_\w*(terminate|drop)\w*|adopt -discard)\b`)

// diagnosis is the result of a Check of db, whose checks may take long on a busy machine.
func diagnosis(t testing.TB, db *database, opts ...doctor.Option) []doctor.Finding {
	t.Helper()
	found, err := doctor.Check(t.Context(), db.DB, append([]doctor.Option{doctor.Timeout(time.Minute)}, opts...)...)
	if err != nil {
		t.Fatalf("%v, after %s", err, printed(found))
	}
	for _, name := range doctor.Names() {
		if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
			return f.Check == name || f.Check == "rights" && strings.Contains(f.Message, name)
		}) {
			t.Errorf("nothing is said of %s", name)
		}
	}
	for _, f := range found {
		if at := destroys.FindStringIndex(f.Remedy); at != nil && at[0] == 0 && !strings.Contains(f.Message, "leftover") {
			t.Errorf("it names no way first that loses nothing: %+v", f)
		}
		if f.Message == "" || f.Severity.AtLeast(doctor.SeverityWarning) && f.Remedy == "" {
			t.Errorf("it does not say what or what to do: %+v", f)
		}
	}
	if !slices.IsSortedFunc(found, func(a, b doctor.Finding) int {
		if !b.Severity.AtLeast(a.Severity) {
			return -1
		}
		return 0
	}) {
		t.Errorf("the worst are not first:\n%s", printed(found))
	}
	return found
}

func printed(found []doctor.Finding) string {
	var lines strings.Builder
	for _, f := range found {
		fmt.Fprintf(&lines, "%v %s %s … %s -> %s\n", f.Severity, f.Check, f.Subject, f.Message, f.Remedy)
	}
	return lines.String()
}

// has returns the first of the wanted findings, written as "severity check subject … text … text".
// A # in a text is any digit.
func has(t testing.TB, found []doctor.Finding, wants ...string) (first doctor.Finding) {
	t.Helper()
	for i, want := range wants {
		texts := strings.Split(want, " … ")
		at := slices.IndexFunc(found, func(f doctor.Finding) bool {
			if strings.TrimSpace(fmt.Sprint(f.Severity, " ", f.Check, " ", f.Subject)) != texts[0] {
				return false
			}
			return !slices.ContainsFunc(texts[1:], func(text string) bool {
				pattern := strings.ReplaceAll(regexp.QuoteMeta(text), "#", `\d`)
				return !regexp.MustCompile(pattern).MatchString(f.Message + " -> " + f.Remedy)
			})
		})
		if at < 0 {
			t.Fatalf("no finding is %s:\n%s", want, printed(found))
		}
		if i == 0 {
			first = found[at]
		}
	}
	return first
}

// only fails if there are findings besides the wanted ones and those of the tests' server.
func only(t testing.TB, found []doctor.Finding, wants ...string) (first doctor.Finding) {
	t.Helper()
	first = has(t, found, wants...)
	others := slices.DeleteFunc(slices.Clone(found), func(f doctor.Finding) bool {
		return f.Severity == doctor.SeverityOK || slices.Contains([]string{"durability", "server-version", "environment"},
			f.Check) ||
			slices.ContainsFunc(wants, func(w string) bool {
				return strings.HasPrefix(w+" ",
					strings.TrimSpace(fmt.Sprint(f.Severity, " ", f.Check, " ", f.Subject))+" ")
			})
	})
	if len(others) > 0 {
		t.Errorf("besides %q there are\n%s", wants, printed(others))
	}
	return first
}

// fine fails unless the checks found nothing worse than Info.
func fine(t testing.TB, found []doctor.Finding, checks ...string) {
	t.Helper()
	for _, f := range found {
		if f.Severity.AtLeast(doctor.SeverityUnknown) && slices.Contains(checks, f.Check) {
			t.Errorf("%s is not fine:\n%s", f.Check, printed([]doctor.Finding{f}))
		}
	}
}

// fault is a change that makes something wrong, with all that the doctor finds then.
type fault struct {
	change string
	wants  []string
	until  string // the end of the statement in the first finding that mends it; "": none does
}

const alive = "0197a1f2-7c11-7a3e-9a55-1f0c2d3e4f50" // the id of a relay

// findEach makes each fault in a database of its own, in which a relay is alive that handles A and B.
func findEach(t *testing.T, faults []fault, opts ...doctor.Option) {
	t.Helper()
	for _, fault := range faults {
		t.Run(fault.change, func(t *testing.T) {
			t.Parallel()
			db := ill(t)
			worker(t, db, true, 10, 12, "A", "B")
			db.Do(t, `UPDATE outbox.relay SET relay_id = $1::uuid`, alive)
			db.Do(t, fault.change)
			f := only(t, diagnosis(t, again(t, db), opts...), fault.wants...)
			if fault.until != "" {
				statement, _, _ := strings.Cut(f.Remedy, fault.until)
				if strings.HasPrefix(f.Remedy, "apply all migrations again") {
					statement = script(t, "outbox")
				}
				db.Do(t, statement)
				fine(t, diagnosis(t, again(t, db), opts...), f.Check)
			}
		})
	}
}

// worker is the id of a relay that is alive for minutes, or dead for an hour, by its row alone.
func worker(t testing.TB, db *database, alive bool, workers, connections int, types ...string) string {
	t.Helper()
	until := "now() + interval '5 minutes'"
	if !alive {
		until = "now() - interval '1 hour'"
	}
	return db.Text(t, fmt.Sprintf(`INSERT INTO outbox.relay
		(relay_id, host, pid, started_at, alive_until, task_types, workers, connections)
		VALUES (gen_random_uuid(), 'worker-7', 4711, now() + interval '1 s', %s, string_to_array('%s', ','),
			NULLIF(%d, 0), NULLIF(%d, 0)) RETURNING relay_id`, until, strings.Join(types, ","), workers, connections))
}

func script(t testing.TB, name string) string {
	t.Helper()
	text, err := schema.SQL(schema.Schema(name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// roles makes the roles of a schema of a name of its own, as a server's are shared.
func roles(t testing.TB, db *database) (name string) {
	t.Helper()
	name = fmt.Sprint("o", time.Now().UnixNano())
	mine := schema.Schema(name)
	if err := errors.Join(schema.Migrate(t.Context(), db.DB, mine),
		schema.GrantRoles(t.Context(), db.DB, mine)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, group := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
			db.Do(t, fmt.Sprintf(`DROP OWNED BY %[1]s_%[2]s CASCADE; DROP ROLE %[1]s_%[2]s`, name, group))
		}
	})
	return name
}

// as is a pool of a role that is a member of the given ones, and that is dropped at the end.
func as(t testing.TB, db *database, roles ...string) (*database, string) {
	t.Helper()
	name := fmt.Sprint("app_", time.Now().UnixNano())
	db.Do(t, `CREATE ROLE `+name+` LOGIN PASSWORD 'C4n4ry'`)
	t.Cleanup(func() { db.Do(t, `DROP OWNED BY `+name+`; DROP ROLE `+name) })
	for _, role := range roles {
		db.Do(t, `GRANT `+role+` TO `+name)
	}
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "C4n4ry")
	app := direct(t, u.String())
	t.Cleanup(func() { app.Close() }) // before its role is dropped
	return app, name
}

// hold leaves a transaction open after the statement, whose error it ignores, on a connection with
// the pid.
func hold(t testing.TB, db *database, level sql.IsolationLevel, statement string) (pid int, end func()) {
	t.Helper()
	tx, err := direct(t, db.URL).BeginTx(context.Background(),
		&sql.TxOptions{Isolation: level, ReadOnly: level != sql.LevelDefault})
	if err == nil {
		err = tx.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = tx.Exec(statement)
	t.Cleanup(func() { _ = tx.Rollback() })
	return pid, func() { _ = tx.Rollback() }
}
