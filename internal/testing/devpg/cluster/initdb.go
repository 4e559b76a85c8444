package cluster

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

var initdbFlags = []string{"-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"}

// initdb makes a data directory, and returns its administrator's password.
func initdb(ctx context.Context, dir *watched.Dir, bin, data, log string) (password string, err error) {
	password = rand.Text()
	file, err := dir.WriteFile("password", password)
	if err != nil {
		return "", err
	}
	defer os.Remove(file)
	args := append([]string{"-D", data, "--pwfile", file}, initdbFlags...)
	return password, dir.Run(ctx, log, filepath.Join(bin, "initdb"), args...)
}
