//go:build linux || darwin || freebsd

package watched

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// dirScript watches the directory $1. Each line that it reads is the process group to end, or empty
// if there is none any more. When the pipe closes it asks the last one to end and kills it 8 s
// later, since a killed server leaves shared memory. Then it removes the directory.
const dirScript = `
group=
while read -r line; do group=$line; done
alive() { kill -s 0 -- "-$group"; }
if [ -n "$group" ]; then
  kill -s QUIT -- "-$group"
  n=0
  while alive && [ $n -lt 80 ]; do n=$((n + 1)); sleep 0.1; done
  alive && kill -s KILL -- "-$group"
fi
n=0
while rm -rf -- "$1"; [ -e "$1" ] && [ $n -lt 50 ]; do n=$((n + 1)); sleep 0.1; done
`

// watchdog is dirScript, which reads a pipe from this process and acts when the pipe closes.
type watchdog struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// watch starts a watchdog of the directory. PATH may lack the system's programs, so they are added.
func watch(dir string) (*watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	script := "PATH=$PATH:/usr/bin:/bin\ntrap '' HUP INT TERM\n" + dirScript
	cmd := exec.Command("/bin/sh", "-c", script, "outbox-devpg-watchdog", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	Detach(cmd)
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, pipe: w}, nil
}

// tell sends the script a line.
func (w *watchdog) tell(line string) { _, _ = io.WriteString(w.pipe, line+"\n") }

// close ends the watchdog, which acts on the last line.
func (w *watchdog) close() {
	_ = w.pipe.Close()
	_ = w.cmd.Wait()
}

// Detach gives the command a session of its own, which a terminal's signals do not reach.
func Detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// command is a program that tells the watchdog of itself before it begins.
func (w *watchdog) command(as *account, program string, args []string) *exec.Cmd {
	const script = `echo $$ >&3 && exec "$0" "$@" 3>&-`
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, program}, args...)...)
	cmd.ExtraFiles = []*os.File{w.pipe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as.credential()}
	return cmd
}

// account is the user that programs run as, other than this process's own.
type account struct {
	name     string
	uid, gid int
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
		return &account{name, uid, gid}, errors.Join(err1, err2)
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// canEnter tries it: permissions of every parent, access lists and mount options have a say.
func (a *account) canEnter(dir string) bool {
	if a == nil {
		return true
	}
	cmd := exec.Command("/bin/sh", "-c", `cd -- "$0"`, dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
	return cmd.Run() == nil
}

// hasRoom reports whether a file system has 4 GiB: room for data and for WAL, which is 1 GiB by
// default.
func hasRoom(dir string) bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && uint64(fs.Bavail)*uint64(fs.Bsize) >= 4<<30
}
