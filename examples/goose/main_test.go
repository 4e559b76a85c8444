package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestGooseAppliesTheOutboxsMigrationsAndTheApps(t *testing.T) {
	files, err := fs.Glob(schema.FS(), "*.sql")
	relaytest.Must(err)
	url := pgtest.Database(t)
	for _, want := range []string{
		fmt.Sprintf("outbox: %d migrations applied\napp: 1 migrations applied\n", len(files)),
		"outbox: 0 migrations applied\napp: 0 migrations applied\n",
	} {
		var out bytes.Buffer
		if err := run(t.Context(), url, &out); err != nil || out.String() != want {
			t.Fatalf("it printed %q, %v; want %q", &out, err, want)
		}
	}
	db, err := pgdb.Open(url)
	relaytest.Must(err)
	defer db.Close()
	if err := schema.Migrate(t.Context(), db); err != nil { // finds nothing to do
		t.Error(err)
	}
	if _, err := db.Exec(`INSERT INTO outbox.task (task_type) VALUES ('A')`); err != nil {
		t.Error(err)
	}

	// Newer code has migrated the schema, and this code restarts.
	newer := schema.Version() + 1
	_, err = db.Exec(fmt.Sprintf(`INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, %d);
		INSERT INTO goose_outbox_version (version_id, is_applied) VALUES (%[1]d, true)`, newer, newer-1))
	relaytest.Must(err)
	var out bytes.Buffer
	if err := run(t.Context(), url, &out); err != nil {
		t.Errorf("beside a newer schema: %v", err)
	}
}
