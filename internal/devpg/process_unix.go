//go:build unix

package devpg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// directoryScript watches a directory, its $1. It reads, line by line, which process it has to end, an initdb, a pg_basebackup, a
// pgbouncer or a postgres, until the process that writes the lines is gone and the pipe with it. It asks before it kills, since what is
// killed leaves shared memory. PATH may hold little more than the programs that a test needs. A postgres is ended only if the directory's postmaster.pid names it, should its number
// have been taken by another.
const directoryScript = `
PATH=$PATH:/usr/bin:/bin
trap '' HUP INT TERM
name= pid=
while read -r n p; do name=$n pid=$p; done
pause() { sleep 0.1 2>/dev/null || sleep 1; }
ours() {
  [ "$name" != postgres ] && return
  read -r first <"$1/data/postmaster.pid" && [ "$first" = "$pid" ]
}
alive() { kill -s 0 -- "-$pid"; }
if [ -n "$pid" ]; then
  n=0
  until ours "$1" || ! alive || [ $n -ge 20 ]; do n=$((n + 1)); pause; done
  if ours "$1"; then
    kill -s QUIT "$pid"
    n=0
    while ours "$1" && alive && [ $n -lt 80 ]; do n=$((n + 1)); pause; done
    ours "$1" && kill -s KILL -- "-$pid"
  fi
fi
n=0
while rm -rf -- "$1"; [ -e "$1" ] && [ $n -lt 50 ]; do n=$((n + 1)); pause; done
`

// containerScript watches a container: $1 is the engine, $2 the container. It tries more than once, since the engine may
// still be making it.
const containerScript = `
PATH=$PATH:/usr/bin:/bin
trap '' HUP INT TERM
last=
while read -r word; do last=$word; done
[ "$last" = removed ] && exit
for n in 1 2 3 4 5; do docker -H "$1" rm -f -v "$2"; sleep 1; done
`

// gateScript becomes the program in its arguments once a line arrives on its input, and nothing if none does: a process
// begins to work only when the watchdog knows of it.
const gateScript = `read -r _ && exec "$0" "$@" </dev/null`

// watchdog is a shell that holds the read end of a pipe from this process: when the pipe closes, it acts.
type watchdog struct {
	cmd  *exec.Cmd
	pipe *os.File
}

func newWatchdog(script string, args ...string) (*watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "outbox-devpg-watchdog"}, args...)...)
	cmd.Dir = "/"
	cmd.Stdin = r
	// a session of its own: Ctrl-C and a closing terminal reach the program, not its watchdog or server
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, pipe: w}, nil
}

// tell sends the script a line.
func (w *watchdog) tell(line string) error {
	if _, err := io.WriteString(w.pipe, line+"\n"); err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	return nil
}

// close ends the watchdog, which acts on what it was told last.
func (w *watchdog) close() {
	w.pipe.Close()
	w.cmd.Wait() // its exit status says nothing that the caller could act on
}

// spawn starts a program of bin in the directory, as its owner, with its output appended to the log.
func (d *directory) spawn(log, bin, name string, args ...string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", gateScript, program(bin, name)}, args...)...)
	cmd.Dir = d.path
	cmd.Env = environment()
	cmd.Stdin = r
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: d.as.credential()}
	if err := cmd.Start(); err != nil {
		if d.as != nil {
			err = fmt.Errorf("as user %s: %w", d.as.name, err)
		}
		return nil, err
	}
	if err := d.guard.tell(fmt.Sprintf("%s %d", name, cmd.Process.Pid)); err != nil {
		w.Close()
		cmd.Wait()
		return nil, err
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		cmd.Wait()
		return nil, err
	}
	return await(cmd, func() { d.guard.tell("") }), nil // without a watchdog there is nobody to tell
}

// shutdown asks a server to stop; it does not wait.
func (p *process) shutdown(_, _, mode string) {
	signal := syscall.SIGINT
	if mode == "immediate" {
		signal = syscall.SIGQUIT
	}
	p.cmd.Process.Signal(signal) // an error means that it has ended
}

// kill ends the process and what it started in its group.
func (p *process) kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // an error means that it has ended
}

// unprivileged returns the user to run servers as, or nil if this process's own will do.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// canEnter tries it, since permissions of every parent, access lists and mount options all have a say.
func canEnter(as *account, dir string) bool {
	cmd := exec.Command("/bin/sh", "-c", `cd -- "$0"`, dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	return cmd.Run() == nil
}

// removeOpenFiles deletes the files that match the glob and that this process has open, and so no other process's.
func removeOpenFiles(glob string) {
	type file struct{ device, inode uint64 }
	open := map[file]bool{}
	descriptors, _ := os.ReadDir("/dev/fd") // where there is none, the files stay
	for _, d := range descriptors {
		var stat syscall.Stat_t
		if fd, err := strconv.Atoi(d.Name()); err == nil && syscall.Fstat(fd, &stat) == nil {
			open[file{uint64(stat.Dev), uint64(stat.Ino)}] = true
		}
	}
	paths, _ := filepath.Glob(glob) // the only error is a malformed glob
	for _, path := range paths {
		var stat syscall.Stat_t
		if syscall.Stat(path, &stat) == nil && open[file{uint64(stat.Dev), uint64(stat.Ino)}] {
			os.Remove(path)
		}
	}
}
