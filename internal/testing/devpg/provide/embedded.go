package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/txoutbox/outbox/internal/testing/devpg/cluster"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
)

const (
	envArchive    = "OUTBOX_TEST_POSTGRES_ARCHIVE"
	envRepository = "OUTBOX_TEST_POSTGRES_REPOSITORY"
)

// extract puts the library's binaries into home. The library heeds no context, so what it still
// writes after ctx has ended goes with the scratch directory, or with this process.
func extract(ctx context.Context, home, scratch string) error {
	archive, err := archive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fetch(archive.BinariesPath(home), scratch) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	return cluster.Check(filepath.Join(home, "bin"))
}

var archiveName = regexp.MustCompile(`^embedded-postgres-binaries-[a-z]+-.+-(\d+(?:\.\d+)+)\.txz$`)

// archive says where the library finds its archive.
func archive() (embeddedpostgres.Config, error) {
	cfg := embeddedpostgres.DefaultConfig().Version(embeddedpostgres.V17)
	if repository := os.Getenv(envRepository); repository != "" {
		cfg = cfg.BinaryRepositoryURL(strings.TrimSuffix(repository, "/"))
	}
	file := os.Getenv(envArchive)
	if file == "" {
		return cfg, nil
	}
	m := archiveName.FindStringSubmatch(filepath.Base(file))
	if m == nil {
		return cfg, fmt.Errorf("%s: %s is not named embedded-postgres-binaries-<system>-<architecture>-<version>.txz",
			envArchive, filepath.Base(file))
	}
	if _, err := os.Stat(file); err != nil {
		return cfg, fmt.Errorf("%s: %w", envArchive, err)
	}
	// The address keeps the library from a download where it wants the archive of another system.
	return cfg.Version(embeddedpostgres.PostgresVersion(m[1])).CachePath(filepath.Dir(file)).
		BinaryRepositoryURL("the archive for this system beside " + file), nil
}

// fetch lets the library download and extract, which it does as part of a start only. It starts no
// server as root, and none with a watchdog, so it gets a data directory in which no server starts.
func fetch(cfg embeddedpostgres.Config, dir string) error {
	port, err := pgurl.FreePort()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "no-data")
	// With the file PG_VERSION the library takes the directory for an initialized one.
	err = errors.Join(os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), nil, 0o600))
	if err != nil {
		return err
	}
	defer removeNew(filepath.Join(os.TempDir(), "embedded_postgres_log*"))() // which it leaves behind
	server := embeddedpostgres.NewDatabase(cfg.Port(uint32(port)).Logger(io.Discard).
		RuntimePath(filepath.Join(dir, "runtime")).DataPath(data))
	err = server.Start()
	switch {
	case err == nil:
		return errors.Join(errors.New("server started without data"), server.Stop())
	case strings.HasPrefix(err.Error(), "could not start postgres"):
		return nil
	}
	return err
}

// removeNew returns a function that deletes the files that match by then and do not yet.
func removeNew(glob string) (remove func()) {
	earlier, _ := filepath.Glob(glob) // the only error is a malformed glob
	return func() {
		now, _ := filepath.Glob(glob)
		for _, path := range now {
			if !slices.Contains(earlier, path) {
				_ = os.Remove(path)
			}
		}
	}
}
