package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestGolangMigrateAppliesTheOutboxsMigrationsAndTheApps(t *testing.T) {
	url := pgtest.Database(t)
	want := fmt.Sprintf("outbox: version %d\napp: version 1\n", schema.Version())
	for range 2 { // the second time there is nothing to do
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

	// Newer code, by this example too, has migrated the schema, and this code restarts.
	newer := schema.Version() + 1
	_, err = db.Exec(fmt.Sprintf(`INSERT INTO outbox.migration (version, oldest_version)
		VALUES (%d, %d); UPDATE migrate_outbox_version SET version = %[1]d`, newer, newer-1))
	relaytest.Must(err)
	var out bytes.Buffer
	if err := run(t.Context(), url, &out); err != nil ||
		out.String() != fmt.Sprintf("outbox: version %d\napp: version 1\n", newer) {
		t.Errorf("beside a newer schema it printed %q, %v", &out, err)
	}
	if _, err := db.Exec(`UPDATE outbox.migration SET oldest_version = version`); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), url, &out); !errors.Is(err, schema.ErrNewer) {
		t.Errorf("beside a schema that does not allow it: got %v, want ErrNewer", err)
	}
}
