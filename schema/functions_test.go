package schema

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// grantedSchema is a schema with its roles.
func grantedSchema(t *testing.T) (db *sql.DB, name string) {
	t.Helper()
	db = open(t, pgtest.Database(t))
	name = newRoles(t, db)
	migrate(t, db, Schema(name))
	if err := GrantRoles(t.Context(), db, Schema(name)); err != nil {
		t.Fatal(err)
	}
	return db, name
}

// list is what a query of names returns, where <schema> stands for the schema's name and <ns> for its oid.
func list(t *testing.T, db *sql.DB, name, query string) string {
	t.Helper()
	query = strings.NewReplacer("<schema>", name, "<ns>", `'"`+name+`"'::regnamespace`).Replace(query)
	return scan[string](t, db, "SELECT COALESCE(string_agg(name, ' ' ORDER BY name), '') FROM ("+query+") AS found (name)")
}

// A function with its owner's rights finds nothing that a caller puts into a schema of its own or a temporary one: the search_path is pinned,
// with temporary tables last. So it is in functions that have settings anyway.
func TestFunctionsWithTheOwnersRightsOrSettingsHaveAPinnedSearchPath(t *testing.T) {
	db, name := grantedSchema(t)
	// An app's triggers on task run inside of those that delete or update tasks, with the search_path of the relay's pool.
	const unpinned = `SELECT proname::text FROM pg_proc WHERE pronamespace = <ns> AND (prosecdef OR proconfig IS NOT NULL)
		AND proname <> ALL ('{claim_task,claim_tasks,lease_tasks,finish_tasks}')
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

// What a group may call with the owner's rights is cancel_task and run_task_now, for those who may cancel. PUBLIC may call nothing.
func TestFunctionsWithTheOwnersRightsAreCalledByWhoIsMeantTo(t *testing.T) {
	db, name := grantedSchema(t)
	for group, want := range map[string]string{"enqueuer": "", "viewer": "", "worker": "cancel_task run_task_now", "operator": "cancel_task run_task_now"} {
		if got := list(t, db, name, `SELECT proname::text FROM pg_proc WHERE pronamespace = <ns> AND prosecdef AND has_function_privilege('<schema>_`+group+`', oid, 'EXECUTE')`); got != want {
			t.Errorf("%s may call %q with the owner's rights, want %q", group, got, want)
		}
	}
	if got := list(t, db, name, `SELECT proname::text FROM pg_proc WHERE pronamespace = <ns> AND has_function_privilege('<schema>_enqueuer', oid, 'EXECUTE')`); got != "enqueue_task" {
		t.Errorf("an enqueuer may call %q", got)
	}
	if got := list(t, db, name, `SELECT proname::text FROM pg_proc, aclexplode(COALESCE(proacl, acldefault('f', proowner))) WHERE pronamespace = <ns> AND grantee = 0`); got != "" {
		t.Errorf("PUBLIC may call %q", got)
	}
	if got, want := list(t, db, name, `SELECT proname::text FROM pg_proc WHERE pronamespace = <ns> AND NOT prosecdef AND NOT has_function_privilege('<schema>_worker', oid, 'EXECUTE')`),
		"check_task lock_waiting mark_headless resolve_key"; got != want {
		t.Errorf("a worker may not call %q, want %q, which triggers call", got, want)
	}
	// Triggers and what they call work with the owner's rights: a group needs none of it.
	if got := list(t, db, name, `SELECT DISTINCT proname::text FROM pg_proc, (VALUES ('enqueuer'), ('worker'), ('viewer'), ('operator')) AS g (role)
		WHERE pronamespace = <ns> AND prorettype = 'trigger'::regtype AND has_function_privilege('<schema>_' || role, oid, 'EXECUTE')`); got != "" {
		t.Errorf("%q could be made triggers of other tables", got)
	}
}

// Tables that a later version adds are in these lists as well, or a group has what it should not have, or lacks it.
func TestWhatIsInATableIsReadByWhoIsMeantTo(t *testing.T) {
	db, name := grantedSchema(t)
	const readable = `SELECT c.relname || '.' || attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
		WHERE relnamespace = <ns> AND relkind IN ('r', 'v') AND attnum > 0 AND NOT attisdropped
		  AND attname IN ('payload', 'headers', 'lease_token', 'token', 'key', 'unique_key', 'ordering_key', 'timing', 'definition')
		  AND has_column_privilege('<schema>_`
	for group, want := range map[string]string{
		"enqueuer": "", "viewer": "",
		"operator": "dead_task.headers dead_task.ordering_key dead_task.payload dead_task.unique_key unique_key.key",
	} {
		if got := list(t, db, name, readable+group+`', c.oid, attnum, 'SELECT')`); got != want {
			t.Errorf("%s reads %q, want %q", group, got, want)
		}
	}
	if got := list(t, db, name, `SELECT relname::text FROM pg_class WHERE relnamespace = <ns> AND relkind = 'r' AND NOT (
		has_table_privilege('<schema>_worker', oid, 'SELECT') AND has_table_privilege('<schema>_worker', oid, 'INSERT')
		AND has_table_privilege('<schema>_worker', oid, 'UPDATE') AND has_table_privilege('<schema>_worker', oid, 'DELETE'))`); got != "audit migration promote_lock" {
		t.Errorf("a worker lacks rights on %q, want audit migration promote_lock", got)
	}
	if got := list(t, db, name, `SELECT format('%s %s %s', g.role, relname, p.privilege) FROM pg_class,
		(VALUES ('enqueuer'), ('viewer'), ('operator'), ('worker')) AS g (role), (VALUES ('TRUNCATE'), ('TRIGGER'), ('REFERENCES')) AS p (privilege)
		WHERE relnamespace = <ns> AND relkind IN ('r', 'v') AND has_table_privilege('<schema>_' || g.role, pg_class.oid, p.privilege)`); got != "" {
		t.Errorf("groups have %q", got)
	}
	for group, want := range map[string]string{"enqueuer": "keyed_task task", "viewer": "", "operator": "audit cancel dead_task headless_key running schedule task task_type unique_key"} {
		if got := list(t, db, name, `SELECT relname::text FROM pg_class WHERE relnamespace = <ns> AND relkind IN ('r', 'v')
			AND (has_any_column_privilege('<schema>_`+group+`', oid, 'INSERT') OR has_any_column_privilege('<schema>_`+group+`', oid, 'UPDATE')
			  OR has_table_privilege('<schema>_`+group+`', oid, 'DELETE'))`); got != want {
			t.Errorf("%s writes to %q, want %q", group, got, want)
		}
	}
}
