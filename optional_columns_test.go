package outbox

import (
	"database/sql"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// The view is the list of columns that an app may set: roles.sql makes the rights of it.
func TestOptionsSetTheColumnsOfTheViewOfKeyedTasks(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var got []string
	err = db.QueryRow(`SELECT array_agg(k.attname::text) FROM pg_attribute k JOIN pg_attribute t USING (attname)
		WHERE k.attrelid = 'outbox.keyed_task'::regclass AND t.attrelid = 'outbox.task'::regclass`).Scan(pq.Array(&got))
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("docs/guide/enqueueing.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"task_id", "task_type", "payload", "unique_key", "unique_until_done"}
	for _, c := range optionalColumns {
		want = append(want, c.name)
		if !strings.Contains(string(guide), "`"+c.name+"`") {
			t.Errorf("docs/guide/enqueueing.md does not name %s", c.name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the view has %v, options set %v", got, want)
	}
}

var ofOptions = regexp.MustCompile(`(?m)^func ([A-Z]\w+)\(.*\) Option \{`)

// Schema and MaxPayload set no column.
func TestTheTableOfFeaturesNamesEachOption(t *testing.T) {
	t.Parallel()
	named := []string{"Schema", "MaxPayload"}
	for _, file := range []string{"options.go", "unique.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		features, err := os.ReadFile("docs/features.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ofOptions.FindAllStringSubmatch(string(source), -1) {
			if !slices.Contains(named, m[1]) && !strings.Contains(string(features), "`outbox."+m[1]+"`") {
				t.Errorf("docs/features.md does not name outbox.%s", m[1])
			}
		}
	}
}
