package devpg

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// template is an archive of a data directory as initdb made it, with its password, in the user's
// cache. To unpack it takes a tenth of what initdb does, and each package of the tests needs a data
// directory.
type template struct{ path string }

// templateOf is the template for the programs in a directory. Another build of them, as after an
// upgrade, other flags and another time zone, which initdb writes down, have another one. Without a
// cache directory it returns an error.
func templateOf(bin string) (template, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return template{}, err
	}
	server, err := os.Stat(program(bin, "postgres"))
	if err != nil {
		return template{}, err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q %d %d %q %q", bin, server.Size(), server.ModTime().UnixNano(), initdbFlags, os.Getenv("TZ")))
	return template{filepath.Join(cache, "outbox-devpg", "initdb-"+hex.EncodeToString(key[:8])+".tar")}, nil
}

// passwordEntry is the archive's last entry, which is no file of the data directory: with it the
// archive is whole.
const passwordEntry = "outbox-devpg-password"

// restore unpacks the template as a data directory, whose owner own sets, and returns its password.
func (t template) restore(data string, own func(path string) error) (password string, err error) {
	f, err := os.Open(t.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := errors.Join(os.Mkdir(data, 0o700), own(data)); err != nil {
		return "", err
	}
	for r := tar.NewReader(f); ; {
		entry, err := r.Next()
		if err != nil {
			return "", err
		}
		path := filepath.Join(data, entry.Name)
		switch {
		case entry.Name == passwordEntry:
			text, err := io.ReadAll(r)
			return string(text), err
		case entry.Typeflag == tar.TypeDir:
			err = os.Mkdir(path, 0o700)
		default:
			err = unpack(path, r)
		}
		if err = errors.Join(err, own(path)); err != nil {
			return "", err
		}
	}
}

func unpack(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// save makes the template of a data directory whose server has not run.
func (t template) save(data, password string) error {
	if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
		return err
	}
	t.removeOld()
	f, err := os.CreateTemp(filepath.Dir(t.path), "unfinished-") // for this user alone
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = w.AddFS(os.DirFS(data))
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: passwordEntry, Mode: 0o600, Size: int64(len(password))})
	}
	if err == nil {
		_, err = io.WriteString(w, password)
	}
	if err = errors.Join(err, w.Close(), f.Close()); err == nil {
		err = os.Rename(f.Name(), t.path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// removeOld deletes what is a month old: other templates, and what a killed process left
// unfinished.
func (t template) removeOld() {
	entries, _ := os.ReadDir(filepath.Dir(t.path)) // what cannot be read stays
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 30*24*time.Hour {
			os.Remove(filepath.Join(filepath.Dir(t.path), e.Name()))
		}
	}
}
