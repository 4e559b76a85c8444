package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// ErrNoBackup is returned by Standby where the server's programs have no pg_basebackup.
var ErrNoBackup = errors.New("devpg: no program pg_basebackup beside the server's")

// Standby copies the running server with pg_basebackup, and starts the copy as a hot standby that
// streams from it.
func (c *Cluster) Standby(ctx context.Context) (*Cluster, error) {
	if _, err := c.Program("pg_basebackup"); err != nil {
		return nil, ErrNoBackup
	}
	dir, err := watched.NewDir(c.dir.InMemory)
	if err != nil {
		return nil, err
	}
	standby := &Cluster{bin: c.bin, dir: dir, settings: c.settings, password: c.password}
	source := c.URL()
	source.Path = ""
	err = dir.Run(ctx, standby.log(), filepath.Join(c.bin, "pg_basebackup"), "-D", standby.data(),
		"-d", source.String(), "-R", "-c", "fast", "-X", "stream", "--no-sync")
	if err == nil {
		err = standby.startOnFreePort(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devpg: standby: %w", err), standby.Close())
	}
	return standby, nil
}
