//go:build unix

package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

// program is the built binary, running in a process group and with a directory for temporary files of its own.
type program struct {
	*exec.Cmd
	temp   string
	out    safeBuffer
	exited chan struct{}
	err    error
}

func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "signup")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// not t.TempDir: as root the server runs as another user, who must be able to enter
	temp, err := os.MkdirTemp("", "signup-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	if err := os.Chmod(temp, 0o1777); err != nil {
		t.Fatal(err)
	}
	if _, err := pgtest.Server(t).Program("postgres"); err != nil { // it is at a URL or in Docker
		args = append(args, "-database-url", pgtest.Database(t)) // leave no tables in it, start no second container
	}
	p := &program{Cmd: exec.Command(binary, args...), temp: temp, exited: make(chan struct{})}
	p.Env = append(os.Environ(), "TMPDIR="+temp)
	p.Stdout, p.Stderr = &p.out, &p.out
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.WaitDelay = 10 * time.Second
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		<-p.exited
		if t.Failed() {
			t.Logf("it said:\n%s", &p.out)
		}
	})
	return p
}

// leftovers lists what is still there of a program that has ended: its process group, processes whose command line
// or working directory names its directory (a server has a group of its own), and files.
func (p *program) leftovers(t *testing.T) (left []string) {
	t.Helper()
	if err := syscall.Kill(-p.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		left = append(left, "its process group")
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // on Linux only
	for _, file := range commands {
		line, _ := os.ReadFile(file)
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(file), "cwd"))
		if strings.Contains(string(line), p.temp) || strings.HasPrefix(cwd, p.temp) {
			left = append(left, file+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	entries, err := os.ReadDir(p.temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	return left
}

// awaitNothingLeft allows a moment: the watchdog of the database server sees the end only after it.
func (p *program) awaitNothingLeft(t *testing.T) {
	t.Helper()
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("%s: still there: %q", runtime.GOOS, left)
		}
	}()
	eventually(t, 15*time.Second, "nothing is left", func() bool {
		left = p.leftovers(t)
		return len(left) == 0
	})
}

func TestBinaryServesAtOnceAndLeavesNothing(t *testing.T) {
	p := startProgram(t, "-addr", "127.0.0.1:0")
	var url string
	eventually(t, 30*time.Second, "it serves", func() bool {
		if m := regexp.MustCompile(`open (http://\S+)`).FindStringSubmatch(p.out.String()); m != nil {
			url = m[1]
		}
		return url != ""
	})
	// of a server of its own it prints the connection string, and of another one not
	dsn := regexp.MustCompile(`OUTBOX_DATABASE_URL='([^']+)'`).FindStringSubmatch(p.out.String())
	switch given := slices.Contains(p.Args, "-database-url"); {
	case given && dsn != nil:
		t.Error("it prints a connection string that it was given")
	case !given && dsn == nil:
		t.Error("it does not print the connection string")
	case !given:
		db, err := pgdb.Open(dsn[1])
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := schema.Check(t.Context(), db, outbox.DefaultSchema); err != nil {
			t.Errorf("with the connection string that it prints: %v", err)
		}
		db.Close()
	}
	fastest := time.Hour // a busy machine may be slow now and then
	for _, email := range []string{"a@example.com", "b@example.com", "c@example.com"} {
		start := time.Now()
		res := do(t, http.MethodPost, url+"/signup", "email="+email+"&password=correct horse", "Content-Type", formType)
		if res.StatusCode != http.StatusSeeOther {
			t.Fatalf("sign-up: %s %s", res.Status, res.body)
		}
		awaitMail(t, url, email, 10*time.Second)
		fastest = min(fastest, time.Since(start))
	}
	if os.Getenv("OUTBOX_TEST_TIMING") != "" && fastest > time.Second {
		t.Errorf("each mail took %v or longer, want less than a second", fastest)
	}
	if err := syscall.Kill(-p.Process.Pid, syscall.SIGINT); err != nil { // as Ctrl-C does
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not stop")
	}
	if p.err != nil {
		t.Errorf("exit: %v, want success", p.err)
	}
	p.awaitNothingLeft(t)
}

// The children end when their parent cannot tell them to.
func TestKilledDemoLeavesNothing(t *testing.T) {
	needs.Long(t)
	p := startProgram(t, "-demo", "-seed", "1")
	eventually(t, 60*time.Second, "the first kill", func() bool { return strings.Contains(p.out.String(), "kill 1 of") })
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	p.awaitNothingLeft(t)
}
