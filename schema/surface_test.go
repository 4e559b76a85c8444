package schema

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

const ofTask = "task_id bigint, task_type text, state text, priority smallint, attempt smallint, max_attempts smallint, " +
	"created_at timestamp with time zone, run_at timestamp with time zone, attempted_at timestamp with time zone, " +
	"iterations integer, last_error text, timeout_ms integer, expires_at timestamp with time zone, payload " +
	"jsonb, headers jsonb, unique_key text, ordering_key text, group_key text"

// surface is what docs/reference/sql.md promises of the schema: columns that can be read, with their
// types.
var surface = map[string]string{
	"task":      ofTask,
	"dead_task": ofTask + ", reason text, died_at timestamp with time zone",
	"done_task": ofTask + ", finished_at timestamp with time zone, keep_until timestamp with time zone, " +
		"outcome text, result jsonb",
	"relay":      "host text, pid integer, started_at timestamp with time zone, alive_until timestamp with time zone, task_types text[]",
	"migration":  "version integer, applied_at timestamp with time zone",
	"audit":      "at timestamp with time zone, actor text, tool text, action text, target text, count bigint",
	"keyed_task": "task_id bigint, outcome text",
}

// asEnqueuer are statements of an app in another language, whose role is an enqueuer.
var asEnqueuer = []struct{ statement, result string }{
	{`INSERT INTO outbox.task (task_type, payload, headers, priority, run_at, max_attempts, timeout_ms,
	    expires_at, unique_key, unique_until_done, unique_until, ordering_key, skip_failed)
	  VALUES ('A', '{"n": 1}', '{"h": "v"}', -1, now() + interval '1 hour', 3, 1000, now() + interval '2 hours',
		'key', true,
	    now() + interval '1 day', 'order', true)
	  RETURNING task_id::text`, "1"},
	{`INSERT INTO outbox.task (task_type) VALUES ('A') RETURNING task_id::text`, "2"},
	{`INSERT INTO outbox.keyed_task (task_type, payload, headers, priority, run_at, max_attempts, timeout_ms,
	    unique_key, unique_until_done, ordering_key, skip_failed, on_conflict)
	  VALUES ('A', '{"n": 2}', NULL, 1, now(), 4, 2000, 'key', true, 'order', true, 'replace')
	  RETURNING concat_ws(' ', task_id, outcome)`, "1 updated"},
	{`SELECT outbox.run_task_now(1)::text`, "false"}, // it is ready
	{`SELECT concat_ws(' ', state, reason, error, result, asked, kept) FROM outbox.task_end(1)`, "open   f f"},
	{`SELECT outbox.cancel_task(1)`, "canceled"},
	{`SELECT outbox.cancel_task(1)`, "not_found"},
	{`SELECT state FROM outbox.task_end(1)`, "gone"},
}

// Rights, names and types are as docs/reference/sql.md says: a stranger's statements go on working.
func TestTheSQLSurfaceIsAsPromised(t *testing.T) {
	url, db, name := grantedSchema(t)
	in := func(statement string) string { return strings.ReplaceAll(statement, "outbox.", quote(name)+".") }
	for table, columns := range surface {
		var names []string
		for _, c := range strings.Split(columns, ", ") {
			column, typ, _ := strings.Cut(c, " ")
			names = append(names, column)
			got := scan[string](t, db, `SELECT format_type(atttypid, atttypmod) FROM pg_attribute
				 WHERE attrelid = $1::regclass AND attname = $2`, quote(name)+"."+table, column)
			if got != typ {
				t.Errorf("%s.%s is %s, was %s", table, column, got, typ)
			}
		}
		run(t, db, fmt.Sprintf("SELECT %s FROM %s.%s", strings.Join(names, ", "), quote(name), table))
	}
	const granted = "GRANT EXECUTE ON FUNCTION outbox.cancel_task, outbox.run_task_now, outbox.task_end TO "
	run(t, db, in(granted)+quote(name+"_enqueuer"))
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

// grantedSchema is a schema with its roles.
func grantedSchema(t *testing.T) (url string, db *sql.DB, name string) {
	t.Helper()
	url = pgtest.Database(t)
	db = open(t, url)
	name = newRoles(t, db)
	migrate(t, db, Schema(name))
	noErr(t, GrantRoles(t.Context(), db, Schema(name)))
	return url, db, name
}

// list is what a query of names returns, where <schema> stands for the schema's name and <ns> for
// its oid.
func list(t *testing.T, db *sql.DB, name, query string) string {
	t.Helper()
	query = strings.NewReplacer("<schema>", name, "<ns>", `'"`+name+`"'::regnamespace`).Replace(query)
	return scan[string](t, db, "SELECT COALESCE(string_agg(name, ' ' ORDER BY name), '') FROM ("+query+") AS found (name)")
}

// A function with its owner's rights finds nothing that a caller puts into a schema of its own or a
// temporary one: the search_path is pinned, with temporary tables last. So it is in functions that
// have settings anyway.
func TestFunctionsWithTheOwnersRightsOrSettingsHaveAPinnedSearchPath(t *testing.T) {
	_, db, name := grantedSchema(t)
	// An app's triggers on tables of tasks run inside of those that write them, with the
	// search_path of the relay's pool.
	const unpinned = `SELECT proname::text FROM pg_proc WHERE pronamespace = <ns> AND (prosecdef OR proconfig IS NOT NULL)
		AND proname <> ALL ('{promote_places,claim_tasks,
			claim_group,claim_member,lease_tasks,finish_tasks,complete_task,put_back,bury,expire_tasks,keep}')
		AND COALESCE(NOT 'search_path=pg_catalog, pg_temp' = ANY (proconfig), true)`
	if got := list(t, db, name, unpinned); got != "" {
		t.Errorf("the search_path is not pinned in %s", got)
	}
	run(t, db, `CREATE FUNCTION "`+name+`".bad() RETURNS int LANGUAGE sql SECURITY DEFINER RETURN 1;
		CREATE FUNCTION "`+name+`".bad2() RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_catalog RETURN 1;
		CREATE FUNCTION "`+name+`".bad3() RETURNS int LANGUAGE sql SET jit = off RETURN 1`)
	if got := list(t, db, name, unpinned); got != "bad bad2 bad3" {
		t.Errorf("the check found %q, want bad bad2 bad3", got)
	}
}

// What is in the schema, whatever a later version adds, is called and read by who is meant to, or
// it is in these lists. Package rights has what each role may do.
func TestWhatIsInTheSchemaIsUsedByWhoIsMeantTo(t *testing.T) {
	_, db, name := grantedSchema(t)
	const functions = `SELECT DISTINCT proname::text FROM pg_proc, (VALUES ('enqueuer'), ('worker'), ('viewer'), ('operator')) AS g (role)
		WHERE pronamespace = <ns> AND has_function_privilege('<schema>_' || role, oid, 'EXECUTE') AND `
	const columns = `SELECT DISTINCT c.relname || '.' || attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid, (VALUES ('enqueuer'), ('viewer'), ('operator')) AS g (role)
		WHERE relnamespace = <ns> AND relkind IN ('r', 'v') AND attnum > 0 AND NOT attisdropped
		  AND attname IN ('payload', 'headers', 'lease_token', 'token', 'key', 'unique_key', 'ordering_key', 'result',
		                  'timing', 'definition')
		  AND has_column_privilege('<schema>_' || role, c.oid, attnum, 'SELECT') AND `
	const tables = `SELECT DISTINCT relname::text FROM pg_class, (VALUES ('enqueuer'), ('worker'), ('viewer'), ('operator')) AS g (role)
		WHERE relnamespace = <ns> AND relkind IN ('r', 'v') AND `
	const mayWrite = `(has_any_column_privilege('<schema>_' || role, oid, 'INSERT') OR has_any_column_privilege('<schema>_' || role, oid, 'UPDATE')
		OR has_table_privilege('<schema>_' || role, oid, 'DELETE'))`
	for about, c := range map[string]struct{ query, want string }{
		"groups may call with the owner's rights": {functions + `prosecdef`, "adopt cancel_task change_tasks " +
			"enqueue_keyed fire_schedule mark_origin origin_state put_schedule redrive run_task_now set_payload " +
			"task_end this_database waits_for"},
		"groups could make triggers of": {functions + `prorettype = 'trigger'::regtype`, ""},
		"an enqueuer may call":          {functions + `role = 'enqueuer'`, "enqueue_keyed enqueue_task"},
		"PUBLIC may call":               {`SELECT proname::text FROM pg_proc, aclexplode(COALESCE(proacl, acldefault('f', proowner))) WHERE pronamespace = <ns> AND grantee = 0`, ""},
		"a worker may not call": {`SELECT proname::text FROM pg_proc WHERE pronamespace = <ns> AND NOT prosecdef AND NOT has_function_privilege('<schema>_worker', oid, 'EXECUTE')`,
			"check_task is_expired lock_waiting request_promotion resolve_key settle"}, // which triggers call
		"an enqueuer or a viewer reads":    {columns + `role <> 'operator'`, ""},
		"an operator reads":                {columns + `role = 'operator'`, "dead_task.headers dead_task.lease_token dead_task.ordering_key dead_task.payload dead_task.unique_key"},
		"groups may truncate or reference": {tables + `has_table_privilege('<schema>_' || role, oid, 'TRUNCATE, TRIGGER, REFERENCES')`, ""},
		"an enqueuer writes to":            {tables + `role = 'enqueuer' AND ` + mayWrite, "inbox keyed_task task"},
		"a viewer writes to":               {tables + `role = 'viewer' AND ` + mayWrite, ""},
		"an operator writes to":            {tables + `role = 'operator' AND ` + mayWrite, "audit dead_task schedule task task_type"},
		"a worker lacks rights on": {tables + `role = 'worker' AND relkind = 'r' AND EXISTS (
			SELECT FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS p (privilege)
			 WHERE NOT has_table_privilege('<schema>_worker', oid, privilege))`, "audit migration promote_lock"},
	} {
		if got := list(t, db, name, c.query); got != c.want {
			t.Errorf("%s %q, want %q", about, got, c.want)
		}
	}
}
