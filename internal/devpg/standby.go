package devpg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// Kill ends the server's main process with SIGKILL, as the death of its machine would. The data stays, and Start starts it again. Only local and
// embedded servers can be killed; others return ErrNotLocal.
func (s *Server) Kill() error {
	if s.cluster == nil {
		return ErrNotLocal
	}
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	c.server.kill()
	<-c.server.exited
	c.server = nil
	return nil
}

// ErrNoBackup is returned by Standby where the server's programs have no pg_basebackup.
var ErrNoBackup = errors.New("devpg: no program pg_basebackup beside the server's")

// Standby makes a copy of the running server with pg_basebackup, on a port of its own with the same password, and starts it as a hot standby that
// streams from it. Whether commits wait for it is for the server's synchronous_standby_names to say. The caller must close it, also
// after [Server.Promote]. Only local servers can have one; others return ErrNotLocal.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	if s.cluster == nil {
		return nil, ErrNotLocal
	}
	if _, err := exec.LookPath(program(s.cluster.bin, "pg_basebackup")); err != nil {
		return nil, ErrNoBackup
	}
	dir, err := newDirectory(s.cluster.memory)
	if err != nil {
		return nil, err
	}
	from := s.cluster
	c := &cluster{bin: from.bin, dir: dir, password: from.password, settings: from.settings, memory: from.memory}
	version, err := c.copyOf(ctx, from)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devpg: standby: %w", err), c.close())
	}
	return &Server{kind: s.kind, url: serverURL(c.address(), c.password), detail: "standby of PostgreSQL " + version + " from " + c.bin, logf: s.logf, cluster: c, release: c.close}, nil
}

func (c *cluster) copyOf(ctx context.Context, from *cluster) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	source := serverURL(from.address(), from.password)
	source.Path = ""
	p, err := c.dir.spawn(c.log(), c.bin, "pg_basebackup", "-D", c.data(), "-d", source.String(), "-R", "-c", "fast", "-X", "stream", "--no-sync")
	if err != nil {
		return "", err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.kill()
		<-p.exited
	}
	if p.err != nil {
		return "", fmt.Errorf("pg_basebackup: %w\n%s", errors.Join(ctx.Err(), p.err), c.logTail(0))
	}
	return c.runOnFreePort(ctx)
}

// Promote makes a standby a server of its own, and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	db, err := sql.Open("postgres", s.URL())
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "SELECT pg_promote(true, 60)"); err != nil {
		return fmt.Errorf("devpg: promote: %w", err)
	}
	for {
		var standby bool
		if err := db.QueryRowContext(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err == nil && !standby {
			return nil
		} else if ctx.Err() != nil {
			return fmt.Errorf("devpg: promote: %w", errors.Join(ctx.Err(), err))
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
