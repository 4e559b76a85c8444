package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	envArchive    = "OUTBOX_TEST_POSTGRES_ARCHIVE"
	envRepository = "OUTBOX_TEST_POSTGRES_REPOSITORY"

	embeddedVersion = embeddedpostgres.V17
	downloadTimeout = 5 * time.Minute
)

func openEmbedded(ctx context.Context, cfg config) (*Server, error) {
	cfg.memory = false // programs cannot be run there everywhere
	dir, err := newDirectory(cfg.memory)
	if err != nil {
		return nil, err
	}
	bin, err := extract(ctx, dir)
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, kindEmbedded, bin, dir, cfg)
}

// extract puts the library's binaries into dir and returns their directory. It owns dir until it returns without an
// error.
func extract(ctx context.Context, dir *directory) (bin string, err error) {
	cfg, err := archive(dir)
	if err != nil {
		return "", errors.Join(err, dir.remove())
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	home := filepath.Join(dir.path, "binaries")
	done := make(chan error, 1)
	go func() { done <- fetch(cfg.BinariesPath(home), dir.path) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// the library cannot be interrupted: the directory goes when it has finished, or with this process
		go func() {
			<-done
			dir.remove()
		}()
		return "", ctx.Err()
	}
	bin = filepath.Join(home, "bin")
	if err == nil {
		err = checkBinaries(bin)
	}
	if err == nil {
		err = filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, dir.own(path))
		})
	}
	if err != nil {
		return "", errors.Join(err, dir.remove())
	}
	return bin, nil
}

var archiveName = regexp.MustCompile(`^embedded-postgres-binaries-[a-z]+-.+-(\d+(?:\.\d+)+)\.txz$`)

// archive says where the library finds its archive.
func archive(dir *directory) (embeddedpostgres.Config, error) {
	cfg := embeddedpostgres.DefaultConfig().Version(embeddedVersion)
	if file := os.Getenv(envArchive); file != "" {
		m := archiveName.FindStringSubmatch(filepath.Base(file))
		if m == nil {
			return cfg, fmt.Errorf("%s: %s is not named embedded-postgres-binaries-<system>-<architecture>-<version>.txz",
				envArchive, filepath.Base(file))
		}
		if _, err := os.Stat(file); err != nil {
			return cfg, fmt.Errorf("%s: %w", envArchive, err)
		}
		// the address keeps the library from a download where it thinks the archive is for another system
		return cfg.Version(embeddedpostgres.PostgresVersion(m[1])).CachePath(filepath.Dir(file)).
			BinaryRepositoryURL("the archive for this system beside " + file), nil
	}
	if repository := os.Getenv(envRepository); repository != "" {
		cfg = cfg.BinaryRepositoryURL(strings.TrimSuffix(repository, "/"))
	}
	cache := filepath.Join(dir.path, "cache")
	if home, err := os.UserHomeDir(); err == nil {
		if probe, err := os.MkdirTemp(home, ".outbox-devpg-"); err == nil {
			os.Remove(probe)
			cache = filepath.Join(home, ".embedded-postgres-go") // where the library keeps its downloads by default
		}
	}
	return cfg.CachePath(cache), nil
}

// fetching is held by fetch, so that a log file in use is that of the one fetch in progress.
var fetching sync.Mutex

// fetch lets the library download and extract. It offers this only as part of a start, which it does without a watchdog
// and not at all as root; so it is given a data directory in which no server starts.
func fetch(cfg embeddedpostgres.Config, dir string) error {
	fetching.Lock()
	defer fetching.Unlock()
	port, err := freePort()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "no-data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	// with this file the library takes the directory for an initialised one
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), nil, 0o600); err != nil {
		return err
	}
	server := embeddedpostgres.NewDatabase(cfg.Port(uint32(port)).Logger(io.Discard).
		RuntimePath(filepath.Join(dir, "runtime")).DataPath(data))
	err = server.Start()
	removeOpenFiles(filepath.Join(os.TempDir(), "embedded_postgres_log*")) // the library leaves its log behind
	switch {
	case err == nil:
		return errors.Join(errors.New("server started without data"), server.Stop())
	case strings.HasPrefix(err.Error(), "could not start postgres"):
		return nil
	}
	return err
}
