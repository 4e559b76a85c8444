//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/chaos/app"
)

// process is one of the app.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	began time.Time
	ended chan struct{} // closed when it has ended
	err   error         // then
}

func startProcess(c app.Config, log string) (*process, error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p := &process{cmd: exec.Command(self), began: time.Now(), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), app.Env+"="+string(config))
	p.cmd.Stdout, p.cmd.Stderr = output, output
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		_ = p.stdin.Close()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// young is how long a process may not know of SIGTERM yet.
const young = 2 * time.Second

var errStays = errors.New("it did not end after SIGTERM")

// terminate asks the process to end, and kills it if it has not within d.
func (p *process) terminate(d time.Duration) error {
	p.signal(syscall.SIGCONT) // it may be frozen
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		if p.err != nil && time.Since(p.began) > young {
			return fmt.Errorf("it ended with: %w", p.err)
		}
		return nil
	case <-time.After(d):
		p.signal(syscall.SIGKILL)
		<-p.ended
		return errStays
	}
}
