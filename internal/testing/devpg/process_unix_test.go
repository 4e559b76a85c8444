//go:build unix

package devpg_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// childMode in the environment makes the test binary a program that opens a server, prints its URL,
// and ends as the mode says.
const childMode = "OUTBOX_DEVPG_TEST_CHILD"

func child(mode string) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGHUP) // which a script's background job ignores
	options := []devpg.Option{devpg.WithMemory()}
	if mode != "docker" {
		options = append(options, devpg.WithLocal())
	}
	s, err := devpg.Open(context.Background(), nil, options...)
	if err != nil {
		panic(err)
	}
	if mode == "restart" {
		if err := errors.Join(s.Stop("fast"), s.Start(context.Background())); err != nil {
			panic(err)
		}
	}
	fmt.Println(s.URL())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test says so, or has ended
		os.Exit(3)
	}()
	<-interrupted
	os.Exit(130)
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
	cmd.Stderr = t.Output()
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &program{cmd, input, bufio.NewReader(output)}
}

// opened waits until the program has a server, and returns its URL.
func (p *program) opened(t *testing.T) string {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		t.Fatal("child has no server: ", err)
	}
	return strings.TrimSpace(line)
}

// signal reaches the program's whole group, as a terminal's does.
func (p *program) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, signal); err != nil {
		t.Fatal(err)
	}
}

func TestServerEndsWithItsProgram(t *testing.T) {
	needs.CI(t)
	for _, test := range []struct {
		mode   string
		signal syscall.Signal // zero for an end by itself
		long   bool
	}{
		{"exit", 0, true},
		{"restart", 0, true}, // of the server
		{"block", syscall.SIGKILL, false},
		{"block", syscall.SIGINT, false},
		{"block", syscall.SIGHUP, true},
	} {
		t.Run(fmt.Sprint(test.mode, " ", test.signal), func(t *testing.T) {
			if test.long {
				needs.Long(t)
			}
			t.Parallel()
			p := startChild(t, test.mode)
			tr, err := tracesOf(t.Context(), p.opened(t))
			if err != nil {
				t.Fatal(err)
			}
			if test.signal != 0 {
				p.signal(t, test.signal)
			} else if err := p.input.Close(); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Wait(); err == nil {
				t.Error("program ended well, want a failure")
			}
			eventually(t, func() error {
				if _, err := os.Stat(tr.directory); err == nil {
					return errors.New("its files are still there")
				}
				return nil
			})
			if err := tr.left(); err != nil { // which would end without its files, too, but in disorder
				t.Error(err)
			}
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
