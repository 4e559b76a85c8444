package schema

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

const ofTask = "task_id bigint, task_type text, state text, priority smallint, attempt smallint, max_attempts smallint, " +
	"created_at timestamp with time zone, run_at timestamp with time zone, attempted_at timestamp with time zone, " +
	"iterations integer, last_error text, timeout_ms integer, payload jsonb, headers jsonb, unique_key text, ordering_key text"

// surface is what docs/stability.md promises of the schema: columns that can be read, with their
// types.
var surface = map[string]string{
	"task":       ofTask,
	"dead_task":  ofTask + ", reason text, died_at timestamp with time zone",
	"done_task":  ofTask + ", finished_at timestamp with time zone, keep_until timestamp with time zone",
	"relay":      "host text, pid integer, started_at timestamp with time zone, alive_until timestamp with time zone, task_types text[]",
	"migration":  "version integer, applied_at timestamp with time zone",
	"audit":      "at timestamp with time zone, actor text, tool text, action text, target text, count bigint",
	"keyed_task": "task_id bigint, outcome text",
}

// asEnqueuer are statements of an app in another language, whose role is an enqueuer.
var asEnqueuer = []struct{ statement, result string }{
	{`INSERT INTO outbox.task (task_type, payload, headers, priority, run_at, max_attempts, timeout_ms,
	    unique_key, unique_until_done, ordering_key, skip_failed)
	  VALUES ('A', '{"n": 1}', '{"h": "v"}', -1, now() + interval '1 hour', 3, 1000, 'key', true, 'order', true)
	  RETURNING task_id::text`, "1"},
	{`INSERT INTO outbox.task (task_type) VALUES ('A') RETURNING task_id::text`, "2"},
	{`INSERT INTO outbox.keyed_task (task_type, payload, headers, priority, run_at, max_attempts, timeout_ms,
	    unique_key, unique_until_done, ordering_key, skip_failed, on_conflict)
	  VALUES ('A', '{"n": 2}', NULL, 1, now(), 4, 2000, 'key', true, 'order', true, 'replace')
	  RETURNING concat_ws(' ', task_id, outcome)`, "1 updated"},
	{`SELECT outbox.run_task_now(1)::text`, "false"}, // it is ready
	{`SELECT outbox.cancel_task(1)`, "canceled"},
	{`SELECT outbox.cancel_task(1)`, "not_found"},
}

// Rights, names and types are as docs/stability.md says: a stranger's statements go on working.
func TestTheSQLSurfaceIsAsPromised(t *testing.T) {
	page, err := os.ReadFile("../docs/stability.md")
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Database(t)
	db := open(t, url)
	name := newRoles(t, db)
	in := func(statement string) string { return strings.ReplaceAll(statement, "outbox.", quote(name)+".") }
	migrate(t, db, Schema(name))
	if err := GrantRoles(t.Context(), db, Schema(name)); err != nil {
		t.Fatal(err)
	}
	for table, columns := range surface {
		var names []string
		for _, c := range strings.Split(columns, ", ") {
			column, typ, _ := strings.Cut(c, " ")
			names = append(names, column)
			if !strings.Contains(string(page), "`"+column+"`") {
				t.Errorf("docs/stability.md does not name %s", column)
			}
			got := scan[string](t, db, `SELECT format_type(atttypid, atttypmod) FROM pg_attribute
				 WHERE attrelid = $1::regclass AND attname = $2`, quote(name)+"."+table, column)
			if got != typ {
				t.Errorf("%s.%s is %s, was %s", table, column, got, typ)
			}
		}
		run(t, db, fmt.Sprintf("SELECT %s FROM %s.%s", strings.Join(names, ", "), quote(name), table))
	}
	run(t, db, in("GRANT EXECUTE ON FUNCTION outbox.cancel_task, outbox.run_task_now TO ")+quote(name+"_enqueuer"))
	app := open(t, url, "role", name+"_enqueuer")
	for _, s := range asEnqueuer {
		if got := scan[string](t, app, in(s.statement)); got != s.result {
			t.Errorf("%s: got %q, want %q", s.statement, got, s.result)
		}
	}
	if _, err := app.ExecContext(t.Context(), in("UPDATE outbox.task SET attempt = 0")); err == nil {
		t.Error("an enqueuer can update tasks")
	}
}
