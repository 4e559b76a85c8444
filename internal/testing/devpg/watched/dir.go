// Package watched has temporary directories and processes that end with this process, also when it
// is killed. A watchdog, which is a shell, sees to that on Unix; elsewhere nothing does.
package watched

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	base := ""
	if inMemory {
		base = memoryBase(as)
	}
	if base == "" {
		if base, err = temporaryBase(as); err != nil {
			return nil, err
		}
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

// temporaryBase is the directory for temporary files, or the first that the account can enter.
func temporaryBase(as *account) (string, error) {
	bases := []string{os.TempDir(), "/var/tmp", "/tmp"}
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
