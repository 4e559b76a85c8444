package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// ErrNoUpgrade is returned by Upgraded where the server's programs have no pg_upgrade.
var ErrNoUpgrade = errors.New("devpg: no program pg_upgrade beside the server's")

// Upgraded stops the server for good and starts what pg_upgrade makes of it: a new cluster, with
// another system identifier, of the same version.
func (c *Cluster) Upgraded(ctx context.Context) (*Cluster, error) {
	program, err := c.Program("pg_upgrade")
	if err != nil {
		return nil, ErrNoUpgrade
	}
	if err := c.Stop("fast"); err != nil {
		return nil, err
	}
	dir, err := watched.NewDir(c.dir.InMemory)
	if err != nil {
		return nil, err
	}
	to := &Cluster{bin: c.bin, dir: dir, settings: c.settings, password: c.password}
	if err = to.upgrade(ctx, c, program); err == nil {
		err = to.startOnFreePort(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devpg: upgrade: %w", err), to.Close())
	}
	return to, nil
}

func (c *Cluster) upgrade(ctx context.Context, from *Cluster, program string) error {
	file, err := c.dir.WriteFile("password", c.password)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	args := append([]string{"-D", c.data(), "--pwfile", file}, initdbFlags...)
	if err := c.dir.Run(ctx, c.log(), filepath.Join(c.bin, "initdb"), args...); err != nil {
		return err
	}
	return c.dir.Run(ctx, c.log(), "/usr/bin/env", "PGPASSWORD="+c.password, program, "-U", "postgres",
		"-b", from.bin, "-B", c.bin, "-d", from.data(), "-D", c.data(), "-s", c.dir.Path)
}
