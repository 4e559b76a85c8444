// Package watched has temporary directories and processes that end with this process, also when it
// is killed. A watchdog, which is a shell, sees to that on Linux, macOS and FreeBSD; elsewhere
// nothing does.
package watched

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Dir is a temporary directory. Its watchdog stops the program that runs in it, and removes it.
type Dir struct {
	Path     string
	InMemory bool // where there is memory for it

	as    *account // owns the directory and its programs; nil for this process's user
	guard *watchdog
}

// NewDir makes an empty directory that only the user of its programs can read: this process's, or
// for root another one.
func NewDir(inMemory bool) (*Dir, error) {
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	base, err := temporaryBase(as, inMemory)
	if err != nil {
		return nil, err
	}
	// The watchdog is there before the directory.
	path := filepath.Join(base, "outbox-devpg-"+strings.ToLower(rand.Text()))
	guard, err := watch(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: path, InMemory: inMemory, as: as, guard: guard}
	err = os.Mkdir(path, 0o700)
	if err == nil {
		err = d.Own(path)
	}
	if err != nil {
		_ = d.Remove()
		return nil, err
	}
	return d, nil
}

// temporaryBase is the first directory for temporary files that the account can enter. Linux has one
// in memory.
func temporaryBase(as *account, inMemory bool) (string, error) {
	bases := []string{os.TempDir(), "/var/tmp", "/tmp"}
	if inMemory && os.Getenv("TMPDIR") == "" && hasRoom("/dev/shm") {
		bases = append([]string{"/dev/shm"}, bases...)
	}
	for _, base := range bases {
		if as.canEnter(base) {
			return filepath.Abs(base)
		}
	}
	return "", fmt.Errorf("user %s, who is to run the server, can enter none of %s; "+
		"TMPDIR can name a directory that it can", as.name, strings.Join(bases, ", "))
}

// Own makes a file, or a directory and all in it, the property of the programs' user.
func (d *Dir) Own(path string) error {
	if d.as == nil {
		return nil
	}
	return filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, d.as.uid, d.as.gid))
	})
}

// WriteFile writes a file in the directory, and returns its path.
func (d *Dir) WriteFile(name, content string) (path string, err error) {
	path = filepath.Join(d.Path, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return "", err
	}
	return path, d.Own(path)
}

// Remove deletes the directory. Its program must have ended. The children of a crashed server may
// still be writing for a moment, which the watchdog outlasts.
func (d *Dir) Remove() error {
	d.guard.close()
	return os.RemoveAll(d.Path)
}

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
