package doctor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
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
	return open(t, relaytest.Migrated(t))
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

// finds changes something and returns what one does of the diagnosis.
func finds(t testing.TB, db *database, change, check string, severity doctor.Severity, subject string, texts ...string) doctor.Finding {
	t.Helper()
	db.Do(t, change)
	return one(t, diagnosis(t, db), check, severity, subject, texts...)
}

// number fails unless a check has so many findings.
func number(t testing.TB, found []doctor.Finding, check string, want int) {
	t.Helper()
	if n := len(of(found, check)); n != want {
		t.Errorf("%d findings of %s, want %d:\n%s", n, check, want, printed(found))
	}
}

// diagnosis is what a Check of db found.
func diagnosis(t testing.TB, db *database, opts ...doctor.Option) []doctor.Finding {
	t.Helper()
	day := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC) // no server of the tests has ended
	found, err := doctor.Check(t.Context(), db.DB, append(opts, doctor.At(day))...)
	if err != nil {
		t.Fatalf("%v, after %s", err, printed(found))
	}
	for _, name := range doctor.Names() {
		if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
			return f.Check == name || f.Check == "rights" && strings.Contains(f.What, name)
		}) {
			t.Errorf("nothing is said of %s", name)
		}
	}
	for _, f := range found {
		if f.What == "" || f.Severity >= doctor.Warning && f.Do == "" {
			t.Errorf("it does not say what or what to do: %+v", f)
		}
	}
	if !slices.IsSortedFunc(found, func(a, b doctor.Finding) int { return int(b.Severity) - int(a.Severity) }) {
		t.Errorf("the worst are not first:\n%s", printed(found))
	}
	return found
}

// of are the findings of a check.
func of(found []doctor.Finding, check string) (out []doctor.Finding) {
	for _, f := range found {
		if f.Check == check {
			out = append(out, f)
		}
	}
	return out
}

func printed(found []doctor.Finding) string {
	lines := []string{}
	for _, f := range found {
		lines = append(lines, fmt.Sprintf("%-8v %s [%s] %s -> %s", f.Severity, f.Check, f.Subject, f.What, f.Do))
	}
	return strings.Join(lines, "\n")
}

// one is the finding of a check with a severity, about a subject; its What and Do have the given
// texts.
func one(t testing.TB, found []doctor.Finding, check string, severity doctor.Severity, subject string, texts ...string) doctor.Finding {
	t.Helper()
	for _, f := range of(found, check) {
		if f.Severity != severity || f.Subject != subject {
			continue
		}
		for _, text := range texts {
			if !strings.Contains(f.What+" -> "+f.Do, text) {
				t.Errorf("%s: the finding lacks %q: %s", check, text, printed([]doctor.Finding{f}))
			}
		}
		return f
	}
	t.Fatalf("%s: no finding %v about %q:\n%s", check, severity, subject, printed(of(found, check)))
	return doctor.Finding{}
}

// fine fails unless the checks found nothing worse than Info.
func fine(t testing.TB, found []doctor.Finding, checks ...string) {
	t.Helper()
	for _, check := range checks {
		if bad := of(found, check); doctor.Worst(bad) > doctor.Info {
			t.Errorf("%s is not fine:\n%s", check, printed(bad))
		}
	}
}

// roles makes the roles of a schema of a name of its own, as a server's are shared.
func roles(t testing.TB, db *database) (name string) {
	t.Helper()
	name = fmt.Sprint("o", time.Now().UnixNano())
	mine := schema.Schema(name)
	if err := errors.Join(schema.Migrate(t.Context(), db.DB, mine), schema.GrantRoles(t.Context(), db.DB, mine)); err != nil {
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

// begin begins a transaction on a connection of its own, with the given pid.
func begin(t testing.TB, db *database, level sql.IsolationLevel) (tx *sql.Tx, pid int, end func()) {
	t.Helper()
	tx, err := direct(t, db.URL).BeginTx(context.Background(), &sql.TxOptions{Isolation: level, ReadOnly: level != sql.LevelDefault})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if err := tx.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return tx, pid, func() { _ = tx.Rollback() }
}

// hold leaves a transaction open after the statement.
func hold(t testing.TB, db *database, level sql.IsolationLevel, statement string) (pid int, end func()) {
	t.Helper()
	tx, pid, end := begin(t, db, level)
	if _, err := tx.Exec(statement); err != nil {
		t.Fatal(err)
	}
	return pid, end
}
