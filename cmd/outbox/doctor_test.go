package main

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestDoctorSaysWhatIsWrongAndEndsWithExitCode4(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t, func(r *handlers.Registry) {
		handlers.Tx(r, mail, func(context.Context, *sql.Tx, *outbox.Task[struct{}]) error { return nil })
	})
	eventually(t, "a relay is alive", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 1 })
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, created_at, run_at) VALUES ('ORPHAN', '{}', now() - interval '1 hour', now() - interval '1 hour')`)
	r := db.run(t, "doctor")
	if r.code != exitFindings || r.err != "" || !strings.Contains(r.out, "unhandled-type: ORPHAN: ") || !strings.Contains(r.out, "\n          do: ") || strings.Contains(r.out, "\nok ") {
		t.Errorf("got %+v", r)
	}
	if all := db.run(t, "doctor", "-all"); !strings.Contains(all.out, "\nok        ") || strings.Contains(all.out, "checks fine") {
		t.Errorf("got %+v", all)
	}
	db.steps(t, step{"doctor -held -1s", exitUsage, "HeldFor"})
}

func TestADoctorThatMayNotLookAtEverythingDoesNotSayThatAllIsWell(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Local(t, map[string]string{"fsync": "on"}).URL())
	db.ok(t, "migrate", "up")
	db.ok(t, "roles", "apply", "-yes")
	r := db.run(t, "doctor")
	ended := strings.Contains(r.out, "warning   server-version: ") // an old server's only finding
	if r.code != exitOK && !ended || r.err != "" || !strings.HasSuffix(r.out, " checks fine\n") {
		t.Errorf("got %+v", r)
	}
	db.Do(t, `BEGIN; COMMIT`) // the pool has a session of another role's
	if r := db.as(t, "viewer").run(t, "doctor"); r.code != exitFailed || r.err != "" || !strings.Contains(r.out, "unknown   held-transaction: checked in part") || !strings.Contains(r.out, "GRANT pg_monitor TO ") {
		t.Errorf("got %+v", r)
	}
	db.Do(t, `CREATE ROLE nobody LOGIN PASSWORD 'v'`)
	_, rest, _ := strings.Cut(db.URL, "@")
	nobody := openDB(t, "postgres://nobody:v@"+rest)
	if r := nobody.run(t, "doctor"); r.code != exitFailed || !strings.Contains(r.out, "unknown   rights: not checked, as the role lacks a right: schema-version, ") || strings.Count(r.out, "lacks a right") != 1 {
		t.Errorf("got %+v", r)
	}
}
