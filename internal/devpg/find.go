package devpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const envBin = "OUTBOX_TEST_POSTGRES_BIN"

// usualPlaces are where packages put server binaries that are not on PATH, one glob an installer.
func usualPlaces() []string {
	places := []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // RHEL and others, from postgresql.org
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	}
	if windows := os.Getenv("ProgramFiles"); windows != "" {
		places = append(places, filepath.Join(windows, "PostgreSQL", "*", "bin"))
	}
	return places
}

// Program returns the path of a program beside those of the server, such as pg_dump, which some packages leave out. Only local and
// embedded servers have programs; others return ErrNotLocal.
func (s *Server) Program(name string) (path string, err error) {
	if s.cluster == nil {
		return "", ErrNotLocal
	}
	return exec.LookPath(filepath.Join(s.cluster.bin, name))
}

// findBinaries returns the directory of the server binaries to use.
func findBinaries(ctx context.Context) (string, error) {
	if dir := os.Getenv(envBin); dir != "" {
		if err := checkBinaries(dir); err != nil {
			return "", fmt.Errorf("%s: %w", envBin, err)
		}
		return filepath.Abs(dir)
	}
	for _, dir := range append(onPath(ctx), newestFirst(existing(usualPlaces()))...) {
		if checkBinaries(dir) == nil {
			return dir, nil
		}
	}
	return "", errors.New("no initdb and postgres on PATH or in the usual places; " + envBin + " can name their directory")
}

// checkBinaries reports what a directory lacks to run a server from it.
func checkBinaries(dir string) error {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("no program %s in %s", name, dir)
		}
	}
	return nil
}

// onPath returns directories that programs on PATH lead to: through symbolic links, and through pg_config where they
// are wrappers.
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

var versionInPath = regexp.MustCompile(`(\d+)(?:\.(\d+))?`)

func existing(globs []string) []string {
	var dirs []string
	for _, glob := range globs {
		matches, _ := filepath.Glob(glob) // the only error is a malformed glob
		dirs = append(dirs, matches...)
	}
	return dirs
}

// newestFirst sorts directories by the version in their paths, the highest first, and keeps the order of equals.
func newestFirst(dirs []string) []string {
	slices.SortStableFunc(dirs, func(a, b string) int { return slices.Compare(versionOf(b), versionOf(a)) })
	return dirs
}

// versionOf reads the version in a path as numbers, since 9.6 comes before 15; a path without one comes last.
func versionOf(path string) []int {
	var version []int
	if m := versionInPath.FindStringSubmatch(path); m != nil {
		for _, part := range m[1:] {
			n, _ := strconv.Atoi(cmp.Or(part, "0"))
			version = append(version, n)
		}
	}
	return version
}

func program(dir, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(dir, name)
}
