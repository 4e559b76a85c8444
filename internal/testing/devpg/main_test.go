//go:build unix

package devpg_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		child(mode)
		return
	}
	os.Exit(m.Run())
}

// clearChoice keeps what the environment asks for the project's other tests from these, and from
// their children.
func clearChoice(t *testing.T) {
	t.Helper()
	for _, name := range []string{"OUTBOX_TEST_POSTGRES", "OUTBOX_TEST_DATABASE_URL"} {
		t.Setenv(name, "")
	}
}

func openLocal(t *testing.T, options ...devpg.Option) *devpg.Server {
	t.Helper()
	fast := devpg.WithSettings(map[string]string{"fsync": "off"})
	s, err := devpg.Open(t.Context(),
		t.Logf, append([]devpg.Option{devpg.WithLocal(), devpg.WithMemory(), fast}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func openDB(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// query returns one value as text.
func query(t *testing.T, url, statement string) string {
	t.Helper()
	var value string
	if err := openDB(t, url).QueryRowContext(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

func do(t *testing.T, url, statement string) {
	t.Helper()
	if _, err := openDB(t, url).ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// traces is what a local server could leave behind.
type traces struct {
	directory string
	pid       int
}

func tracesOf(ctx context.Context, url string) (traces, error) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return traces{}, err
	}
	defer db.Close()
	var data string
	if err := db.QueryRowContext(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return traces{}, err
	}
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return traces{}, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(first)
	return traces{filepath.Dir(data), pid}, err
}

func mustTraces(t *testing.T, s *devpg.Server) traces {
	t.Helper()
	tr, err := tracesOf(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// left says what is still there.
func (tr traces) left() error {
	if _, err := os.Stat(tr.directory); !os.IsNotExist(err) {
		return fmt.Errorf("directory %s is still there (%v)", tr.directory, err)
	}
	if running(tr.pid) {
		return fmt.Errorf("server process %d still runs", tr.pid)
	}
	return nil
}

// running does not count a process that has ended and that nobody has waited for.
func running(pid int) bool {
	if runtime.GOOS == "linux" {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && !strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
	}
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "Z")
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 30 s: %v", err)
		}
	}
}

// openDirectory is a temporary directory that every user can enter, unlike t.TempDir's.
func openDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left", filepath.Join(dir, e.Name()))
	}
}
