package watched

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a program that runs in a [Dir].
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of its exit
}

// Spawn starts a program as the directory's user, with its output appended to the log. A directory
// has one program at a time.
func (d *Dir) Spawn(log, program string, args ...string) (*Process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := d.guard.command(d.as, program, args)
	cmd.Dir = d.Path
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		d.guard.tell("") // its number may become another process's
		close(p.exited)
	}()
	return p, nil
}

// Run starts a program that ends by itself. It interrupts it when ctx ends, and after a minute. The
// error has the log.
func (d *Dir) Run(ctx context.Context, log, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := d.Spawn(log, program, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.Stop(syscall.SIGINT)
	}
	if p.err == nil {
		return ctx.Err()
	}
	said, _ := os.ReadFile(log)
	return fmt.Errorf("%s: %w\n%s", filepath.Base(program), errors.Join(ctx.Err(), p.err), said)
}

// Ended returns an error once the process has ended.
func (p *Process) Ended() error {
	select {
	case <-p.exited:
		return fmt.Errorf("it has ended: %v", p.cmd.ProcessState)
	default:
		return nil
	}
}

// Stop sends the signals one after the other, each 10 s after the one before, and then kills. It
// returns when the process has ended. Where there are no signals it waits for as long.
func (p *Process) Stop(signals ...os.Signal) {
	for _, signal := range signals {
		_ = p.cmd.Process.Signal(signal) // an error means that it has ended
		select {
		case <-p.exited:
			return
		case <-time.After(10 * time.Second):
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// environment is this process's, without what changes a server's data, port or language.
func environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			env = append(env, entry)
		}
	}
	return append(env, "LC_ALL=C")
}
