//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// program is the built binary, with a process group and a directory for temporary files of its own.
type program struct {
	*exec.Cmd
	temp string
	out  relaytest.Records
}

func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "signup")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", binary,
		".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// not t.TempDir: as root the server runs as another user, which must be able to enter it
	temp, err := os.MkdirTemp("", "signup-test-")
	relaytest.Must(err)
	t.Cleanup(func() { os.RemoveAll(temp) })
	relaytest.Must(os.Chmod(temp, 0o1777))
	p := &program{Cmd: exec.Command(binary, args...), temp: temp}
	p.Env = append(os.Environ(), "TMPDIR="+temp)
	if _, err := pgtest.Server(t).Program("postgres"); err != nil { // it is at a URL
		p.Env = append(p.Env, devdb.Variable+"="+pgtest.Database(t)) // leave no tables in it
	}
	p.Stdout, p.Stderr = &p.out, &p.out
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.WaitDelay = 10 * time.Second
	relaytest.Must(p.Start())
	t.Cleanup(func() {
		syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		_ = p.Wait() // unless the test did
		if t.Failed() {
			t.Logf("it said:\n%s", &p.out)
		}
	})
	return p
}

// awaitNothingLeft allows a moment: the watchdog of the database server sees the end only after it.
// It looks for the process group, processes whose command line or working directory names the
// program's directory (a server has a group of its own), and files.
func (p *program) awaitNothingLeft(t *testing.T) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, "nothing is left", func() bool {
		processes, _ := filepath.Glob("/proc/[0-9]*") // on Linux only
		files, err := os.ReadDir(p.temp)
		return errors.Is(syscall.Kill(-p.Process.Pid, 0), syscall.ESRCH) && err == nil && len(files) == 0 &&
			!slices.ContainsFunc(processes, func(process string) bool {
				line, _ := os.ReadFile(filepath.Join(process, "cmdline"))
				dir, _ := os.Readlink(filepath.Join(process, "cwd"))
				return strings.Contains(string(line), p.temp) || strings.HasPrefix(dir, p.temp)
			})
	})
}

func TestBinaryServesAtOnceAndLeavesNothing(t *testing.T) {
	p := startProgram(t, "-addr", "127.0.0.1:0")
	said := func(pattern string) string {
		m := append(regexp.MustCompile(pattern).FindStringSubmatch(p.out.String()), "", "")
		return m[1]
	}
	relaytest.Eventually(t, time.Minute, "it serves", func() bool { return said(`(dashboard at .*)\n`) != "" })
	url := said(`open (http://\S+)`)
	if status, body := send(t, url+"/signup", "email=a@example.com"); status != 200 {
		t.Fatalf("sign-up: %d\n%s", status, body)
	}
	awaitText(t, url, "to a@example.com")
	relaytest.Must(syscall.Kill(-p.Process.Pid, syscall.SIGINT)) // as Ctrl-C does
	if err := p.Wait(); err != nil {
		t.Errorf("exit: %v, want success", err)
	}
	p.awaitNothingLeft(t)
}

// The database that the environment names may be in use by the example itself: its relay would take
// tasks of the demo, which counts them.
func TestTheDemoHasADatabaseOfItsOwnWhateverTheEnvironmentNames(t *testing.T) {
	needs.CI(t)
	url := pgtest.Database(t)
	given := openDatabase(t, url)
	relaytest.Must(signUp(t.Context(), given, "a@example.com"))
	t.Setenv(devdb.Variable, url)
	t.Setenv("PGHOSTADDR", "192.0.2.1")
	p := startProgram(t, "-demo")
	relaytest.Eventually(t, time.Minute, "the first kill", func() bool {
		return strings.Contains(p.out.String(), "kill 1 of")
	})
	if want := "OUTBOX_DATABASE_URL is not used"; !strings.Contains(p.out.String(), want) {
		t.Errorf("it does not say: %s", want)
	}
	if n := number(t, given, `SELECT count(*) FROM outbox.task`) + number(t, given, `SELECT count(*) FROM usr`); n != 3 {
		t.Errorf("the database that the environment names has %d rows, want 3", n)
	}
}
