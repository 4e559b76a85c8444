package main

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestDoctorSaysWhatIsWrongAndEndsWithExitCode4(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, created_at, run_at)
		VALUES ('ORPHAN', now() - interval '1 hour', now() - interval '1 hour')`)
	db.steps(t,
		step{"doctor", exitFindings, "unhandled-type: ORPHAN: "},
		step{"doctor", exitFindings, "\n          do: "},
		step{"doctor", exitFindings, " checks fine\n"},
		step{"doctor -all", exitFindings, "\nok        "},
		step{"doctor -held -1s", exitUsage, "HeldFor"},
	)
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
	db.as(t, "viewer").steps(t,
		step{"doctor", exitFailed, "unknown   held-transaction: checked in part"},
		step{"doctor", exitFailed, "GRANT pg_monitor TO "})
	db.Do(t, `CREATE ROLE nobody LOGIN PASSWORD 'v'`)
	_, rest, _ := strings.Cut(db.URL, "@")
	openDB(t, "postgres://nobody:v@"+rest).steps(t,
		step{"doctor", exitFailed, "unknown   rights: not checked, as the role lacks a right: schema-version, "})
}
