package devpg

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// directory is a temporary directory with a watchdog: when this process ends, in whatever way, the watchdog stops what
// was spawned here and removes the directory.
type directory struct {
	path  string
	as    *account // owns the directory and the processes; nil where that is this process's user
	guard *watchdog
}

// account is the user that a server runs as, other than this process's own.
type account struct {
	name     string
	uid, gid int
}

// process is a child whose exit is awaited from the start.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after the exit
	err    error         // of the exit; to be read once exited is closed
}

// await begins to wait for a started command. ended runs before the exit is told to anybody.
func await(cmd *exec.Cmd, ended func()) *process {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		ended()
		close(p.exited)
	}()
	return p
}

// newDirectory makes an empty directory that only the servers' user can read, among the temporary files or in memory.
func newDirectory(memory bool) (*directory, error) {
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	base := ""
	if memory {
		base = memoryBase(as)
	}
	if base == "" {
		if base, err = temporaryBase(as); err != nil {
			return nil, err
		}
	}
	// the watchdog is there before the directory, so there is no moment in which it could be left behind
	path := filepath.Join(base, "outbox-devpg-"+randomHex(8))
	guard, err := newWatchdog(directoryScript, path)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, as: as, guard: guard}
	if err := os.Mkdir(path, 0o700); err != nil {
		guard.close()
		return nil, err
	}
	if err := d.own(path); err != nil {
		d.remove()
		return nil, err
	}
	return d, nil
}

// temporaryBase returns the directory for temporary files, or as root the first that the servers' user can enter.
func temporaryBase(as *account) (string, error) {
	if as == nil {
		return filepath.Abs(os.TempDir())
	}
	bases := []string{os.TempDir(), "/var/tmp", "/tmp"}
	for _, base := range bases {
		if canEnter(as, base) {
			return filepath.Abs(base)
		}
	}
	return "", fmt.Errorf("user %s, who is to run the server, can enter none of %s; TMPDIR can name a directory that it can",
		as.name, strings.Join(bases, ", "))
}

func (d *directory) own(path string) error {
	if d.as == nil {
		return nil
	}
	return os.Chown(path, d.as.uid, d.as.gid)
}

func (d *directory) writeFile(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return d.own(path)
}

// remove deletes the directory and ends the watchdog. What was spawned must have ended; the children of a server that
// crashed may still be writing for a moment, which the watchdog outlasts.
func (d *directory) remove() error {
	d.guard.close()
	return os.RemoveAll(d.path)
}

// environment is this process's, without what would change a server's mind about its data, port or language.
func environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			env = append(env, entry)
		}
	}
	return append(env, "LC_ALL=C")
}
