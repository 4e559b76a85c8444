//go:build unix

package watched

import (
	"fmt"
	"io"
	"os"
	"os/exec"
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
