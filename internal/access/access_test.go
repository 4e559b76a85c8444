package access

import (
	"slices"
	"testing"
)

func TestColumnsThatMigrationsAddAreTheOutboxs(t *testing.T) {
	got := columnsOf(`
CREATE TABLE IF NOT EXISTS outbox.task (
  task_id bigint PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS outbox.dead_task (
  LIKE outbox.task INCLUDING DEFAULTS,
  reason text COLLATE "C" NOT NULL
);
-- ALTER TABLE outbox.task ADD COLUMN of_a_comment text;
ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS tenant text COLLATE "C",
  ALTER COLUMN task_id SET STATISTICS 7, ADD COLUMN region text DEFAULT 'x',
  ADD CONSTRAINT task_region CHECK (region <> '');
ALTER TABLE outbox.dead_task ADD COLUMN tenant text; ALTER TABLE outbox.dead_task
  ADD region text;
ALTER TABLE outbox.task ADD COLUMN old text; ALTER TABLE outbox.task DROP COLUMN IF EXISTS old;
ALTER TABLE app.task ADD COLUMN of_the_app text;`)
	want := []string{
		"dead_task.reason", "dead_task.region", "dead_task.task_id", "dead_task.tenant", "done_task.task_id",
		"task.region", "task.task_id", "task.tenant",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGrantsAreThoseOfTheScript(t *testing.T) {
	t.Parallel()
	for _, want := range []Grant{
		{"worker", "USAGE", "schema", "", false, ""},
		{"worker", "UPDATE", "sequence", "wake", false, ""},
		{"worker", "EXECUTE", "function", "note_origin", false, ""},
		{"worker", "INSERT", "table", "keyed_task", true, "on_conflict position"},
		{"operator", "DELETE", "table", "dead_task", false, ""},
		{"operator", "UPDATE", "table", "dead_task", true, "run_at"},
	} {
		if !slices.Contains(Grants(), want) {
			t.Errorf("it lacks %v", want)
		}
	}
}
