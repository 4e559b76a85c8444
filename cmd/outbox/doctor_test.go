package main

import (
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
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
	db := openDB(t, pgtest.Local(t, map[string]string{"fsync": "on"}).URL()) // with no other finding
	db.Do(t, `CREATE ROLE nobody LOGIN PASSWORD 'v'`)
	db.ok(t, "migrate", "up")
	r := db.run(t, "doctor")
	if old := strings.Contains(r.out, "server-version: "); r.code != exitOK && !old {
		t.Errorf("as the owner: got %+v", r)
	}
	_, rest, _ := strings.Cut(db.URL, "@")
	openDB(t, "postgres://nobody:v@"+rest).steps(t,
		step{"doctor", exitFailed, "unknown   rights: not checked, as the role lacks a right: schema-version, "})
}
