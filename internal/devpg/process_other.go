//go:build !unix

package devpg

import (
	"os"
	"os/exec"
)

// watchdog does nothing here: if this process is killed, its server stays.
type watchdog struct{}

const directoryScript, containerScript = "", ""

func newWatchdog(string, ...string) (*watchdog, error) { return &watchdog{}, nil }
func (*watchdog) tell(string) error                    { return nil }
func (*watchdog) close()                               {}

func (d *directory) spawn(log, bin, name string, args ...string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := exec.Command(program(bin, name), args...)
	cmd.Dir = d.path
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return await(cmd, func() {}), nil
}

// shutdown asks a server to stop; it does not wait. There are no signals here that pg_ctl would not have to send.
func (p *process) shutdown(bin, data, mode string) {
	exec.Command(program(bin, "pg_ctl"), "stop", "-D", data, "-m", mode, "-W").Run() // halt looks whether it helped
}

func (p *process) kill() { p.cmd.Process.Kill() }

func unprivileged() (*account, error) { return nil, nil }
func canEnter(*account, string) bool  { return true }

// removeOpenFiles does nothing: a file that is open cannot be removed here.
func removeOpenFiles(string) {}
