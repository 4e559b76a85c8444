package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const envBin = "OUTBOX_TEST_POSTGRES_BIN"

// usualPlaces are where packages put server programs that are not on PATH.
var usualPlaces = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // RHEL and others, from postgresql.org
	"/usr/libexec/postgresql*",  // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	filepath.Join(os.Getenv("ProgramFiles"), "PostgreSQL", "*", "bin"), // Windows
}

// Find returns the directory of the server programs to use: the one that OUTBOX_TEST_POSTGRES_BIN
// names, else on PATH, else the newest in the usual places.
func Find(ctx context.Context) (bin string, err error) {
	if dir := os.Getenv(envBin); dir != "" {
		if err := Check(dir); err != nil {
			return "", fmt.Errorf("%s: %w", envBin, err)
		}
		return filepath.Abs(dir)
	}
	var installed []string
	for _, glob := range usualPlaces {
		found, _ := filepath.Glob(glob) // the only error is a malformed glob
		installed = append(installed, found...)
	}
	for _, dir := range append(onPath(ctx), newestFirst(installed)...) {
		if Check(dir) == nil {
			return dir, nil
		}
	}
	return "", errors.New("no initdb and postgres on PATH or in the usual places; " + envBin + " can name their directory")
}

// Check says what a directory lacks to run a server from it.
func Check(dir string) error {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("no program %s in %s", name, dir)
		}
	}
	return nil
}

// onPath returns the directories that programs on PATH lead to: through symbolic links, and through
// pg_config where they are wrappers.
func onPath(ctx context.Context) []string {
	var dirs []string
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return dirs
}

// newestFirst sorts directories by the first number in their paths, the version. Those without one
// come last.
func newestFirst(dirs []string) []string {
	version := func(path string) int {
		n, _ := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(path))
		return n
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	return dirs
}
