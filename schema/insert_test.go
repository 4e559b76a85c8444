package schema

import (
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/pgerr"
)

func TestInsertIsAllThatAnEnqueuerNeeds(t *testing.T) {
	for _, name := range []string{"outbox", "select"} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			admin := open(t, url)
			migrate(t, admin, Schema(name))
			enqueuer := newRole(t, admin)
			run(t, admin, "GRANT USAGE ON SCHEMA "+quote(name)+" TO "+enqueuer+
				"; GRANT INSERT, SELECT (task_id) ON "+quote(name)+".task TO "+enqueuer)
			setWake(t, admin, name, "1 hour")

			db := open(t, url, "role", enqueuer, "search_path", "nowhere")
			run(t, db, "INSERT INTO "+quote(name)+".task (task_type) VALUES ('now')")
			run(t, db, "INSERT INTO "+quote(name)+".task (task_type, run_at) VALUES ('later', now() + interval '1 hour')")
			if id := scan[int](t, db, "SELECT "+quote(name)+".enqueue_task('plain', '{}')"); id != 3 {
				t.Errorf("enqueue_task: got task_id %d, want 3", id)
			}
			id := scan[int](t, db, "INSERT INTO "+quote(name)+".task (task_type, run_at) VALUES ('past', now() - interval '1 hour') RETURNING task_id")
			if id != 4 {
				t.Errorf("got task_id %d, want 4", id)
			}
			got := scan[string](t, admin, "SELECT string_agg(task_type || ' ' || state, ', ' ORDER BY task_id) FROM "+quote(name)+".task")
			if want := "now ready, later scheduled, plain ready, past ready"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			for _, statement := range []string{
				"SELECT payload FROM " + quote(name) + ".task", "DELETE FROM " + quote(name) + ".task",
				"SELECT last_value FROM " + quote(name) + ".wake", "SELECT version FROM " + quote(name) + ".migration",
				"SELECT " + quote(name) + ".task_wake()", "SELECT " + quote(name) + ".check_task(1)",
			} {
				if _, err := db.ExecContext(t.Context(), statement); pgerr.Code(err) != "42501" {
					t.Errorf("%s: got %v, want permission denied", statement, err)
				}
			}
			run(t, admin, "REVOKE INSERT ON "+quote(name)+".task FROM "+enqueuer)
			if _, err := db.ExecContext(t.Context(), "SELECT "+quote(name)+".enqueue_task('plain', '{}')"); pgerr.Code(err) != "42501" {
				t.Errorf("enqueue_task without INSERT: got %v, want permission denied", err)
			}
		})
	}
}

// Entries of a lane are never equal, so looking for equal ones is work for nothing.
func TestInsertsLookForNoEqualEntriesInALane(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	if got := scan[string](t, db, "SELECT COALESCE(array_to_string(reloptions, ', '), '') FROM pg_class WHERE oid = 'outbox.task_lane'::regclass"); got != "deduplicate_items=off" {
		t.Errorf("the lane's index has the options %q, want deduplicate_items=off", got)
	}
}

// setWake asks for notifications until some time from now.
func setWake(t *testing.T, db *sql.DB, name, from string) {
	t.Helper()
	run(t, db, "SELECT setval('"+quote(name)+".wake', ceil(extract(epoch FROM clock_timestamp() + interval '"+from+"'))::bigint)")
}
