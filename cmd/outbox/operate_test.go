package main

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
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
	if out := db.ok(t, "migrate", "status"); len(words(out, "19", "relays", "pending")) != 3 {
		t.Errorf("got\n%s", out)
	}
	if out := db.ok(t, "migrate", "up"); !regexp.MustCompile(`^schema outbox: migrated from version 0 to \d+\n$`).MatchString(out) {
		t.Errorf("got %q", out)
	}
	if out := db.ok(t, "migrate", "up"); !regexp.MustCompile(`^schema outbox: at version \d+ already\n$`).MatchString(out) {
		t.Errorf("got %q", out)
	}
	if out := db.ok(t, "migrate", "status"); strings.Contains(out, "pending") || words(out, "19", "relays", time.Now().UTC().Format("2006-01-02")) == nil {
		t.Errorf("got\n%s", out)
	}
	if got := db.audited(t); !strings.HasPrefix(got, "migrate schema version 0 to ") || strings.Contains(got, "\n") {
		t.Errorf("the audit has %q", got)
	}
	// What print prints makes the same schema, under another name.
	script := db.ok(t, "migrate", "print", "-schema", "printed")
	db.exec(t, script)
	if out := db.ok(t, "stats", "-schema", "printed"); !strings.HasPrefix(out, "TYPE ") {
		t.Errorf("got\n%s", out)
	}
	db.exec(t, db.ok(t, "roles", "print", "-schema", "printed"))
	if got := db.text(t, `SELECT count(*) FROM pg_roles WHERE rolname LIKE 'printed\_%'`); got != "5" {
		t.Errorf("%s roles, want 5", got)
	}
	db.exec(t, `REASSIGN OWNED BY printed_owner TO CURRENT_USER`)
	for _, role := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
		db.exec(t, `DROP OWNED BY printed_`+role)
		db.exec(t, `DROP ROLE printed_`+role)
	}
}

func TestSchedulesArePausedResumedAndRemoved(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.exec(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition, next_at) VALUES ('nightly', 'REPORT', '{}', '@daily', 'x', 'x', now() + interval '1 day')`)
	if got := words(db.ok(t, "schedules"), "nightly"); len(got) < 4 || got[1] != "REPORT" || got[2] != "@daily" {
		t.Errorf("got %q", got)
	}
	for _, tt := range []struct{ verb, want, state string }{{"pause", "schedule nightly: paused\n", "true"}, {"resume", "schedule nightly: resumed\n", "false"}, {"remove", "schedule nightly: removed\n", ""}} {
		args := []string{"schedules", tt.verb, "nightly"}
		if tt.verb == "remove" {
			args = append(args, "-yes")
		}
		if got := db.ok(t, args...); got != tt.want {
			t.Errorf("%s: got %q", tt.verb, got)
		}
		if got := db.text(t, `SELECT min(paused::text) FROM outbox.schedule`); got != tt.state {
			t.Errorf("%s: paused is %q", tt.verb, got)
		}
		if r := db.run(t, "schedules", tt.verb, "none", "-yes"); tt.verb == "remove" && r.code != exitNotFound || r.code == exitOK {
			t.Errorf("%s of none: %+v", tt.verb, r)
		}
	}
	want := "pause_schedule nightly 1\nresume_schedule nightly 1\nremove_schedule nightly 1"
	if got := db.audited(t); got != want {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
}

func TestWhatFailsAfterItWasNotedIsNotedAsFailed(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`LOCK TABLE outbox.task IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	c := command(t, environment(db.url), "reindex")
	done := begin(t, c)
	eventually(t, "it waits", func() bool {
		return db.text(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox' AND datname = current_database() AND wait_event_type = 'Lock'`) == "1"
	})
	if got := db.audited(t); got != "reindex all indexes 0" {
		t.Errorf("the audit has %q while it works", got)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code != exitFailed || !strings.HasSuffix(r.err, "outbox: interrupted\n") {
		t.Errorf("got %+v", r)
	}
	if got, want := db.audited(t), "reindex all indexes 0\nreindex: failed all indexes 0"; got != want {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
}

func TestHandBackNeedsAWordForARelayThatLives(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	release := make(chan struct{})
	defer close(release)
	started := make(chan struct{}, 10)
	db.relay(t, func(r *handlers.Registry) {
		handlers.Leased(r, outbox.NewTaskType[any]("SLOW"), func(ctx context.Context, _ *outbox.Task[any]) error {
			started <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		})
	})
	db.ok(t, "enqueue", "SLOW", "{}")
	<-started
	id := db.text(t, `SELECT relay_id FROM outbox.relay`)
	if got := words(db.ok(t, "relays"), id); len(got) < 7 || got[3] != "alive" || got[6] != "1" || got[7] != "SLOW" {
		t.Errorf("got %q", got)
	}
	task := db.text(t, `SELECT task_id FROM outbox.task`)
	if shown := db.ok(t, "tasks", "show", task); !strings.Contains(shown, "leased") || !strings.Contains(shown, id) {
		t.Errorf("got\n%s", shown)
	}
	if r := db.run(t, "relays", "hand-back", id); r.code != exitUsage || !strings.Contains(r.err, "is alive. Take all leased tasks from it? Say --yes") {
		t.Errorf("got %+v", r)
	}
	if r := db.run(t, "relays", "hand-back", "none"); r.code != exitNotFound {
		t.Errorf("got %+v", r)
	}
	if got := db.ok(t, "relays", "hand-back", id, "-yes"); got != "1 task handed back\n" {
		t.Errorf("got %q", got)
	}
	if got, want := db.audited(t), "hand_back relay "+id+" 0\nhand_back: done relay "+id+" 1"; !strings.HasSuffix(got, want) {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
	if r := db.run(t, "tasks", "cancel", task, "-yes"); r.code != exitOK || !strings.Contains(r.out, "canceled") && !strings.Contains(r.out, "asked to end") {
		t.Errorf("got %+v", r)
	}
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
	db.ok(t, "enqueue", "KEPT", `{"secret": "C4n4ry"}`)
	db.ok(t, "enqueue", "KEPT", `{}`, "-header", "skip=yes")
	eventually(t, "both are finished", func() bool { return db.text(t, `SELECT count(*) FROM outbox.done_task`) == "2" })
	out := db.ok(t, "history", "list", "-type", "KEPT")
	if words(out, "1", "done") == nil {
		t.Errorf("got\n%s", out)
	}
	if got := words(out, "2"); strings.Join(got[5:], " ") != "discarded: not wanted" {
		t.Errorf("got\n%s", out)
	}
	if shown := db.ok(t, "history", "show", "1"); strings.Contains(shown, "C4n4ry") || !strings.Contains(shown, "kept until") {
		t.Errorf("got\n%s", shown)
	}
	if shown := db.ok(t, "history", "show", "1", "-payload"); !strings.Contains(shown, "C4n4ry") {
		t.Errorf("got\n%s", shown)
	}
	if r := db.run(t, "history", "show", "3"); r.code != exitNotFound {
		t.Errorf("got %+v", r)
	}
}

func TestPayloadsHeadersAndKeysAreOnlyShownWithPayload(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1001, 1)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`, "-header", "h=C4n4ry", "-unique", "C4n4ry", "-ordered", "C4n4ry")
	id := db.text(t, `SELECT task_id FROM outbox.task`)
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
	// Without a database there is nothing to offer, and nothing is said in the middle of the user's line.
	r := finish(t, command(t, environment("postgres://nobody@127.0.0.1:1/none?sslmode=disable"), "__complete", "pause", ""))
	if r.code != 0 || strings.Contains(r.out, "MAIL") || strings.Contains(r.err, "refused") {
		t.Errorf("got %+v", r)
	}
}

func TestTheAuditIsListedInPages(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for _, name := range []string{"A", "B", "C"} {
		db.ok(t, "pause", name, "-actor", "ada")
	}
	type list struct {
		Entries []entry `json:"entries"`
		Next    string  `json:"next"`
	}
	var first, second list
	db.json(t, &first, "audit", "-limit", "2")
	db.json(t, &second, "audit", "-limit", "2", "-after", first.Next)
	if r := db.run(t, "audit", "-after", "0"); r.code != exitUsage {
		t.Errorf("got %+v", r)
	}
	if len(first.Entries) != 2 || first.Entries[0].Target != "C" || len(second.Entries) != 1 || second.Entries[0].Target != "A" || second.Entries[0].Actor != "ada" || second.Entries[0].Tool != "outbox" {
		t.Errorf("got %+v, %+v", first, second)
	}
}
