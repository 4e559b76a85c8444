//go:build unix

package devpg_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/needs"
)

// childMode in the environment makes the test binary a program that opens a server and then ends as the mode says.
const childMode = "OUTBOX_DEVPG_TEST_CHILD"

func child(mode string) {
	interrupted := make(chan os.Signal, 1)
	switch {
	case mode == "drain":
		signal.Notify(interrupted, os.Interrupt)
	case signal.Ignored(os.Interrupt) || signal.Ignored(syscall.SIGHUP): // in a script's background job, under nohup
		signal.Notify(interrupted, os.Interrupt, syscall.SIGHUP)
		go func() {
			<-interrupted
			os.Exit(130)
		}()
	}
	options := []devpg.Option{devpg.WithMemory()}
	if mode != "docker" {
		options = append(options, devpg.WithLocal())
	}
	s, err := devpg.Open(context.Background(), nil, options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if mode == "docker" {
		fmt.Println(s.URL())
	} else {
		tr, err := tracesOf(context.Background(), s.URL())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		fmt.Println(tr.directory, tr.pid)
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // the test says when, unless it has ended
		os.Exit(2)
	}
	switch mode {
	case "exit":
		os.Exit(3)
	case "panic":
		panic("as asked")
	case "restart":
		if err := errors.Join(s.Stop("fast"), s.Start(context.Background())); err != nil {
			panic(err)
		}
		panic("as asked")
	case "drain":
		<-interrupted
		db, _ := sql.Open("postgres", s.URL())
		if err := db.Ping(); err != nil {
			panic(fmt.Sprint("server was gone before the program: ", err))
		}
		if err := s.Close(); err != nil {
			panic(err)
		}
	}
}

type program struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines *bufio.Reader
}

// startChild runs the test binary as a program, in a process group of its own, as a shell would.
func startChild(t *testing.T, mode string, env ...string) *program {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childMode+"="+mode), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = &logWriter{t}
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &program{cmd, input, bufio.NewReader(output)}
}

type logWriter struct{ t *testing.T }

func (w *logWriter) Write(p []byte) (int, error) {
	w.t.Logf("child: %s", p)
	return len(p), nil
}

// opened waits until the program has a server.
func (p *program) opened(t *testing.T) traces {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		t.Fatal("child has no server: ", err)
	}
	directory, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	return traces{directory, n}
}

func (p *program) proceed(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.input, "\n"); err != nil {
		t.Fatal(err)
	}
}

func TestServerEndsWithItsProgram(t *testing.T) {
	needs.CI(t)
	signalled := func(sig syscall.Signal) func(*testing.T, *program) {
		return func(t *testing.T, p *program) {
			// to the whole group, as a terminal does
			if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name, mode string
		end        func(*testing.T, *program)
		long       bool
	}{
		{"os.Exit", "exit", (func(t *testing.T, p *program) { p.proceed(t) }), true},
		{"panic", "panic", (func(t *testing.T, p *program) { p.proceed(t) }), true},
		{"panic after a restart of the server", "restart", (func(t *testing.T, p *program) { p.proceed(t) }), true},
		{"SIGKILL", "block", signalled(syscall.SIGKILL), false},
		{"SIGINT", "block", signalled(syscall.SIGINT), false},
		{"SIGTERM", "block", signalled(syscall.SIGTERM), true},
		{"SIGHUP", "block", signalled(syscall.SIGHUP), true},
		{"SIGQUIT", "block", signalled(syscall.SIGQUIT), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.long {
				needs.Long(t)
			}
			t.Parallel()
			p := startChild(t, test.mode)
			tr := p.opened(t)
			if err := tr.left(); err == nil {
				t.Fatal("nothing to leave behind: the test looks in the wrong place")
			}
			test.end(t, p)
			if err := p.cmd.Wait(); err == nil {
				t.Error("program ended well, want a failure")
			}
			eventually(t, tr.left)
		})
	}
}

func TestInterruptReachesTheProgramOnly(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	p := startChild(t, "drain")
	tr := p.opened(t)
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.proceed(t)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("program did not end in order: %v", err)
	}
	if err := tr.left(); err != nil {
		t.Errorf("after Close %v", err)
	}
}

// A program is killed at each stage of the making of its server.
func TestProgramKilledWhileOpening(t *testing.T) {
	needs.Long(t)
	for _, stage := range []string{
		"",                             // the directory
		"password",                     // before initdb
		"data/postgresql.conf",         // in initdb
		"data/base/1/PG_VERSION",       // late in initdb
		"data/postmaster.opts",         // the server starts
		"data/global/pg_internal.init", // somebody has connected
	} {
		t.Run("at "+stage, func(t *testing.T) {
			t.Parallel()
			ps := needs.Program(t, "procps", "ps")
			tmp, home := openDirectory(t), t.TempDir()
			p := startChild(t, "block", "TMPDIR="+tmp, "HOME="+home, "XDG_CACHE_HOME="+home) // no template yet
			eventually(t, func() error {
				found, _ := filepath.Glob(filepath.Join(tmp, "outbox-devpg-*", stage))
				if len(found) == 0 {
					return fmt.Errorf("no %s yet", stage)
				}
				return nil
			})
			p.cmd.Process.Kill()
			p.cmd.Wait()
			eventually(t, func() error {
				if out, err := exec.Command(ps, "-A", "-o", "args=").Output(); err != nil {
					return err
				} else if strings.Contains(string(out), tmp) {
					return fmt.Errorf("processes of %s are left", tmp)
				}
				return nil
			})
			empty(t, tmp)
		})
	}
}

func TestRootRunsTheServerAsAnotherUserThatCanReachIt(t *testing.T) {
	needs.Long(t)
	clearChoice(t)
	ps := needs.Program(t, "procps", "ps")
	closed := openDirectory(t)
	if err := os.Chmod(closed, 0o700); err != nil { // as root, a directory that the server's user cannot enter
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", closed)
	s := openLocal(t)
	tr := mustTraces(t, s)
	owner, err := exec.Command(ps, "-o", "uid=", "-p", strconv.Itoa(tr.pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	uid := strings.TrimSpace(string(owner))
	if uid == "0" {
		t.Error("server runs as root")
	}
	if inside := filepath.Dir(tr.directory) == closed; inside != (os.Geteuid() != 0) {
		t.Errorf("as user %d the server of user %s is in %s, TMPDIR is %s", os.Geteuid(), uid, tr.directory, closed)
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

func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

func stillRuns(pid int) error {
	if running(pid) {
		return fmt.Errorf("process %d still runs", pid)
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
