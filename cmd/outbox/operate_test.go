package main

import (
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestMigrateUpStatusAndPrint(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	db.steps(t,
		step{"migrate status", 0, "1  tables  pending\n"},
		step{"migrate up", 0, "schema outbox: migrated from version 0 to "},
		step{"migrate up", 0, "schema outbox: at version "},
		step{"migrate status", 0, "1  tables  " + time.Now().UTC().Format(time.DateOnly)},
	)
	if got := db.audited(t); !strings.HasPrefix(got, "migrate schema version 0 to ") || strings.Contains(got, "\n") {
		t.Errorf("the audit has %q", got)
	}
	// What print prints makes the same schema, under another name.
	db.Do(t, db.ok(t, "migrate", "print", "-schema", "printed"))
	db.steps(t, step{"stats -schema printed", 0, "TYPE "})
	db.Do(t, db.ok(t, "roles", "print", "-schema", "printed"))
	db.is(t, `SELECT count(*) FROM pg_roles WHERE rolname LIKE 'printed\_%'`, "5")
	db.Do(t, `REASSIGN OWNED BY printed_owner TO CURRENT_USER`)
	for _, role := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
		db.Do(t, `DROP OWNED BY printed_`+role)
		db.Do(t, `DROP ROLE printed_`+role)
	}
}

func TestTheHistoryIsListedAndShown(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority,
		attempt, task_type, payload, last_error) SELECT n, now(), now(), now(), now(), now(), 0, 1, 'KEPT', '{}',
		(ARRAY[NULL, 'discard: not wanted'])[n] FROM generate_series(1, 2) n`)
	key := db.Text(t, `SELECT concat(left(database_id::text, 14), '8', substr(database_id::text, 16, 3),
		'-8000-000000000001') FROM outbox.identity`)
	db.steps(t,
		step{"history show " + key, 0, key},
		step{"tasks show 11111111-1111-8111-8000-000000000001", exitNotFound, "is not there"}, // another database's
		step{"tasks show 1-1", exitUsage, `"1-1" is not the key of a task`},
		step{"history list -type KEPT", 0, "  done\n"},
		step{"history list -type KEPT", 0, "  discarded: not wanted\n"},
		step{"history show 1", 0, "kept until"},
		step{"history show 3", exitNotFound, "task 3 is not there"},
		step{"dead show 1", exitNotFound, "task 1 is finished, not dead: see outbox tasks show 1"},
	)
}

func TestPayloadsHeadersAndKeysAreOnlyShownWithPayload(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1001, 1)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`, "-header", "h=C4n4ry", "-unique", "C4n4ry", "-ordered", "C4n4ry")
	id := db.Text(t, `SELECT task_id FROM outbox.task`)
	for _, args := range []string{"types", "top", "audit", "dead list", "dead show 1001",
		"tasks list -type MAIL -state waiting", "tasks show " + id} {
		for _, more := range [][]string{nil, {"-json"}} {
			r := db.run(t, append(strings.Fields(args), more...)...)
			if r.code != exitOK || strings.Contains(r.out+r.err, "C4n4ry") {
				t.Errorf("%s: got %+v", args, r)
			}
		}
	}
	show := "tasks show " + id + " -payload"
	for args, want := range map[string]int{"dead show 1001 -payload": 1, show: 4, show + " -json": 4} {
		if got := strings.Count(db.ok(t, strings.Fields(args)...), "C4n4ry"); got != want {
			t.Errorf("%s: %d times, want %d", args, got, want)
		}
	}
}
