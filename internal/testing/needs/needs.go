// Package needs finds the programs that some tests need besides Go and PostgreSQL's server.
//
// A test whose program is missing is skipped, with the package to install. With
// OUTBOX_TEST_REQUIRE=all it fails instead, as in CI.
package needs

import (
	"os"
	"os/exec"
	"testing"
)

// envRequire makes a missing program a failure.
const envRequire = "OUTBOX_TEST_REQUIRE"

// Browsers are the names of chromium and of browsers that are driven in the same way.
var Browsers = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
	"headless-shell",
	"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "/Applications/Chromium.app/Contents/MacOS/Chromium"}

// Program returns the path of the first program of these names that is installed, on PATH or in
// /usr/sbin, and skips the test where there is none. pkg is Debian's package.
func Program(t testing.TB, pkg string, names ...string) (path string) {
	t.Helper()
	path = find(names)
	if path == "" {
		Missing(t, names[0], pkg)
	}
	return path
}

// Optional is Program for a test that checks less without it: path is empty then.
func Optional(t testing.TB, pkg string, names ...string) (path string) {
	t.Helper()
	path = find(names)
	if path == "" {
		Without(t, names[0], pkg)
	}
	return path
}

// Docker skips the test where no Docker engine answers the command docker.
func Docker(t testing.TB) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), Program(t, "docker.io", "docker"), "info").Run(); err != nil {
		Missing(t, "a running Docker engine", "docker.io")
	}
}

// Timing skips a test that asserts rates, shares of time or milliseconds, which a busy machine may
// fail, unless OUTBOX_TEST_TIMING=1.
func Timing(t testing.TB) { t.Helper(); asked(t, "OUTBOX_TEST_TIMING") }

// CI skips a test that costs too much for each go test, unless OUTBOX_TEST_REQUIRE=all, as CI sets
// it on each push, or OUTBOX_TEST_LONG=1.
func CI(t testing.TB) {
	t.Helper()
	if !InCI() {
		t.Skipf("runs in CI, and with OUTBOX_TEST_LONG=1")
	}
}

// InCI reports whether such tests run.
func InCI() bool { return required() || os.Getenv("OUTBOX_TEST_LONG") != "" }

// Few returns the named cases of a test whose others cost too much for each go test. It returns all
// cases where InCI.
func Few[C any](t testing.TB, all map[string]C, names ...string) map[string]C {
	t.Helper()
	if InCI() {
		return all
	}
	few := make(map[string]C, len(names))
	for _, name := range names {
		c, ok := all[name]
		if !ok {
			t.Fatalf("there is no case %q", name)
		}
		few[name] = c
	}
	return few
}

// Long skips a test that takes long, unless OUTBOX_TEST_LONG=1.
func Long(t testing.TB) { t.Helper(); asked(t, "OUTBOX_TEST_LONG") }

func asked(t testing.TB, name string) {
	t.Helper()
	if os.Getenv(name) == "" {
		t.Skipf("runs with %s=1", name)
	}
}

// Missing ends a test that needs a program that is missing: it is skipped, or fails with
// OUTBOX_TEST_REQUIRE=all.
func Missing(t testing.TB, what, pkg string) {
	t.Helper()
	if required() {
		t.Fatalf("%s=all: needs %s: apt-get install %s", envRequire, what, pkg)
	}
	t.Skipf("needs %s: apt-get install %s", what, pkg)
}

// Without says that the test goes on without the program; with OUTBOX_TEST_REQUIRE=all it fails.
func Without(t testing.TB, what, pkg string) {
	t.Helper()
	if required() {
		t.Errorf("%s=all: needs %s: apt-get install %s", envRequire, what, pkg)
		return
	}
	t.Logf("goes on without %s: apt-get install %s", what, pkg)
}

func required() bool { return os.Getenv(envRequire) == "all" }

func find(names []string) string {
	for _, name := range names {
		for _, place := range []string{name, "/usr/sbin/" + name} {
			if path, err := exec.LookPath(place); err == nil {
				return path
			}
		}
	}
	return ""
}
