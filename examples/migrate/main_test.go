package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
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

func TestAFileThatFailsLeavesNothingAndIsTriedAgain(t *testing.T) {
	url := pgtest.Database(t)
	db, err := pgdb.Open(url)
	relaytest.Must(err)
	defer db.Close()
	files := fstest.MapFS{"00001_a.sql": {Data: []byte("CREATE TABLE a (); SELECT 1/0;")}, "readme.md": {}}
	renamed := func() fs.FS {
		t.Helper()
		out, err := upFiles(files)
		relaytest.Must(err)
		return out
	}
	if _, err := up(t.Context(), db, renamed(), ".", "versions"); err == nil {
		t.Fatal("a migration that divides by 0 was applied")
	}
	var exists bool
	if err := db.QueryRow(`SELECT to_regclass('a') IS NOT NULL`).Scan(&exists); err != nil || exists {
		t.Errorf("the table of a failed migration exists: %v, %v", exists, err)
	}
	files["00001_a.sql"].Data = []byte("CREATE TABLE a ();")
	if _, err := up(t.Context(), db, renamed(), ".", "versions"); !errors.As(err, new(migrate.ErrDirty)) {
		t.Errorf("up: %v, want that the version is dirty", err)
	}
	source, err := iofs.New(renamed(), ".")
	relaytest.Must(err)
	m, err := migrate.NewWithSourceInstance("files", source, url+"&x-migrations-table=versions")
	relaytest.Must(err)
	defer m.Close()
	if err := errors.Join(m.Force(database.NilVersion), m.Up()); err != nil {
		t.Error(err)
	}
}
