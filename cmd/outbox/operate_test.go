package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
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

func TestWhatFailsAfterItWasNotedIsNotedAsFailed(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Hold(t, `LOCK TABLE outbox.task`)
	c := command(t, environment(db.URL), "reindex")
	done := begin(t, c)
	eventually(t, "it waits", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox' AND datname = current_database() AND wait_event_type = 'Lock'`) == 1
	})
	db.wantAudit(t, "reindex all indexes 0")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code != exitFailed || !strings.HasSuffix(r.err, "outbox: interrupted\n") {
		t.Errorf("got %+v", r)
	}
	db.wantAudit(t, "reindex all indexes 0", "reindex: failed all indexes 0")
}

func TestTheHistoryIsListedAndShown(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t, func(r *handlers.Registry) {
		handlers.Tx(r, outbox.NewTaskType[any]("KEPT"), func(_ context.Context, _ *sql.Tx, task *outbox.Task[any]) error {
			if task.Headers["skip"] != "" {
				return handlers.Discard(errors.New("not wanted"))
			}
			return nil
		}, handlers.Keep(time.Hour))
	})
	db.ok(t, "enqueue", "KEPT", `{}`)
	db.ok(t, "enqueue", "KEPT", `{}`, "-header", "skip=yes")
	eventually(t, "both are finished", func() bool { return db.Text(t, `SELECT count(*) FROM outbox.done_task`) == "2" })
	key := db.Text(t, `SELECT concat(left(database_id::text, 14), '8', substr(database_id::text, 16, 3), '-8000-000000000001') FROM outbox.identity`)
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
	for _, args := range []string{"stats", "types", "relays", "top", "audit", "schedules", "dead list", "dead show 1001", "tasks list -type MAIL -state waiting", "tasks show " + id, "tasks list -state dead"} {
		for _, more := range [][]string{nil, {"-json"}} {
			if r := db.run(t, append(strings.Fields(args), more...)...); r.code != exitOK || strings.Contains(r.out+r.err, "C4n4ry") {
				t.Errorf("%s: got %+v", args, r)
			}
		}
	}
	for args, want := range map[string]int{"dead show 1001 -payload": 1, "tasks show " + id + " -payload": 4, "tasks show " + id + " -payload -json": 4} {
		if got := strings.Count(db.ok(t, strings.Fields(args)...), "C4n4ry"); got != want {
			t.Errorf("%s: %d times, want %d", args, got, want)
		}
	}
}

func TestTheShellCompletesTypesThatThereAre(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "enqueue", "MAIL", "{}")
	db.ok(t, "enqueue", "REPORT", "{}")
	for _, args := range [][]string{{"pause", ""}, {"enqueue", ""}, {"dead", "list", "--type", ""}, {"tasks", "list", "-type", ""}} {
		if out := db.ok(t, append([]string{"__complete"}, args...)...); !strings.HasPrefix(out, "MAIL\nREPORT\n:4\n") {
			t.Errorf("%q: got %q", args, out)
		}
	}
	if out := db.ok(t, "__complete", "tasks", "list", "--state", ""); !strings.HasPrefix(out, "ready\nscheduled\n") {
		t.Errorf("got %q", out)
	}
	// Without a database there is nothing to offer, and nothing is said in the middle of the user's
	// line.
	r := finish(t, command(t, environment("postgres://nobody@127.0.0.1:1/none?sslmode=disable"), "__complete", "pause", ""))
	if r.code != 0 || strings.Contains(r.out, "MAIL") || strings.Contains(r.err, "refused") {
		t.Errorf("got %+v", r)
	}
}
