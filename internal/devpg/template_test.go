package devpg_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/needs"
)

// The first server's data directory is made by initdb, later ones are copies of it. A broken template is no obstacle.
func TestLaterDataDirectoriesAreCopies(t *testing.T) {
	needs.Long(t)
	cache := t.TempDir()
	t.Setenv("HOME", filepath.Join(cache, "home"))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(cache, "cache"))
	t.Setenv("LocalAppData", filepath.Join(cache, "cache"))
	start := func() (cluster string) {
		server, err := devpg.Open(t.Context(), t.Logf, devpg.WithLocal(), devpg.WithSettings(map[string]string{"fsync": "off"}))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		db, err := sql.Open("postgres", server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("CREATE TABLE mine (n int)"); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRow("SELECT system_identifier FROM pg_control_system()").Scan(&cluster); err != nil {
			t.Fatal(err)
		}
		return cluster
	}
	first, second := start(), start()
	if first != second {
		t.Errorf("clusters %s and %s, want a copy", first, second)
	}
	directory, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(directory, "outbox-devpg", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the cache has %q, %v; want one template", files, err)
	}
	if err := os.Truncate(files[0], 20_000_000); err != nil {
		t.Fatal(err)
	}
	third := start()
	if third == first {
		t.Errorf("cluster %s is a copy of a broken template", third)
	}
	if fourth := start(); fourth != third {
		t.Errorf("clusters %s and %s: the broken template was not replaced", third, fourth)
	}
}
