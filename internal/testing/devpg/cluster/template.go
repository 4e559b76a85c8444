package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// template is a data directory as initdb made it, and its password, in the user's cache directory.
// A copy takes a tenth of what initdb does. It is empty where there can be none.
type template string

// templateOf is the template for the programs in bin. Another build of them, other flags and
// another time zone, which initdb writes down, have another one. Programs in the cluster's own
// directory have none, as they go with it.
func templateOf(bin string, dir *watched.Dir) template {
	cache, err := os.UserCacheDir()
	if err != nil || strings.HasPrefix(bin, dir.Path) {
		return ""
	}
	path, err := exec.LookPath(filepath.Join(bin, "postgres"))
	if err != nil {
		return ""
	}
	server, err := os.Stat(path)
	if err != nil {
		return ""
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q %d %d %q %q",
		bin, server.Size(), server.ModTime().UnixNano(), initdbFlags, os.Getenv("TZ")))
	return template(filepath.Join(cache, "outbox-devpg", "initdb-"+hex.EncodeToString(key[:8])))
}

// restore copies the template, and returns its password.
func (t template) restore(data string, dir *watched.Dir) (password string, err error) {
	text, err := os.ReadFile(filepath.Join(string(t), "password"))
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(data, os.DirFS(filepath.Join(string(t), "data"))); err != nil {
		return "", err
	}
	return string(text), errors.Join(os.Chmod(data, 0o700), dir.Own(data))
}

// save makes the template of a data directory whose server has not run, and deletes what is a month
// old.
func (t template) save(data, password string) error {
	cache := filepath.Dir(string(t))
	if t == "" {
		return nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	entries, _ := os.ReadDir(cache)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 30*24*time.Hour {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
	unfinished, err := os.MkdirTemp(cache, "unfinished-") // for this user alone
	if err != nil {
		return err
	}
	defer os.RemoveAll(unfinished)
	return errors.Join(
		os.CopyFS(filepath.Join(unfinished, "data"), os.DirFS(data)),
		os.WriteFile(filepath.Join(unfinished, "password"), []byte(password), 0o600),
		os.Rename(unfinished, string(t))) // fails where another process was faster
}

// remove deletes a template that no server starts from. It is renamed first, so that a copy of it
// fails.
func (t template) remove() {
	broken := string(t) + "-broken"
	_ = os.Rename(string(t), broken)
	_ = os.RemoveAll(broken)
}
