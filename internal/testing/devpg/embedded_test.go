//go:build unix

package devpg_test

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/needs"
)

// The archive of this test holds programs that call those on this machine; all else is as with a
// downloaded one.
func TestEmbedded(t *testing.T) {
	needs.CI(t)
	clearChoice(t)
	xz := needs.Program(t, "xz-utils", "xz")
	t.Setenv("OUTBOX_TEST_POSTGRES", "embedded")
	tmp := openDirectory(t)
	archive := embeddedArchive(t, xz, binaries(t))
	t.Setenv("TMPDIR", tmp)

	t.Setenv("OUTBOX_TEST_POSTGRES_ARCHIVE", archive)
	s, logged, err := open(t)
	if err != nil {
		t.Fatal(err)
	}
	wantChoice(t, s, logged, "embedded")
	for _, err := range []error{s.Stop("fast"), s.Start(t.Context())} {
		if err != nil {
			t.Error(err)
		}
	}
	query(t, s.URL(), "SELECT 1")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	empty(t, tmp)

	t.Setenv("OUTBOX_TEST_POSTGRES_ARCHIVE", "")
	for _, name := range []string{"GOCACHE", "GOENV", "GOMODCACHE"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(name, strings.TrimSpace(string(value)))
	}
	t.Setenv("HOME", tmp) // without an archive from an earlier download
	t.Setenv("OUTBOX_TEST_POSTGRES_REPOSITORY", "http://127.0.0.1:1")
	if _, _, err := open(t); err == nil || !strings.Contains(err.Error(), "unable to connect to http://127.0.0.1:1") {
		t.Errorf("no repository: got error %v", err)
	}
}

// embeddedArchive is an archive in embedded-postgres's form and under its name for this system.
func embeddedArchive(t *testing.T, xz, bin string) string {
	t.Helper()
	dir := t.TempDir()
	plain := filepath.Join(dir, "archive.tar")
	f, err := os.Create(plain)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s/%s \"$@\"\n", bin, name)
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + name, Mode: 0o755, Size: int64(len(script))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(script)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(xz, plain).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", xz, err, out)
	}
	path := filepath.Join(dir, embeddedName())
	if err := os.Rename(plain+".xz", path); err != nil {
		t.Fatal(err)
	}
	return path
}

func embeddedName() string {
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		arch += "-alpine"
	}
	return "embedded-postgres-binaries-" + runtime.GOOS + "-" + arch + "-17.0.0.txz"
}
