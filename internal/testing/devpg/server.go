package devpg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/cluster"
)

// ErrNotLocal is returned for a server that is no process of this machine's user: a URL or a
// container.
var ErrNotLocal = errors.New("devpg: not a local server")

// Server is a running PostgreSQL. Its methods are safe for concurrent use.
type Server struct {
	found
	logf  func(format string, args ...any)
	admin *sql.DB // keeps one connection; a new one costs as much as half of a new database

	preparing sync.Mutex
	templates map[any]string // names by the keys of PreparedDatabase
	drops     []func()       // of templates
}

func newServer(f found, logf func(format string, args ...any)) (*Server, error) {
	admin, err := sql.Open("postgres", f.url.String())
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	admin.SetMaxIdleConns(1)
	s := &Server{found: f, logf: logf, admin: admin, templates: map[any]string{}}
	s.close = sync.OnceValue(func() error {
		for _, drop := range s.drops {
			drop()
		}
		return errors.Join(admin.Close(), f.close())
	})
	return s, nil
}

// URL is the address of the server for its administrator, password included. It names the database
// postgres, or the one that OUTBOX_TEST_DATABASE_URL names.
func (s *Server) URL() string { return s.url.String() }

// Close stops a server that Open started and removes its files or its container; it breaks
// connections that are still open. A server found by URL is left alone. Later calls return what the
// first did, after it is done.
func (s *Server) Close() error { return s.close() }

// local is the server's process. Only local and embedded servers have one.
func (s *Server) local() (*cluster.Cluster, error) {
	if s.cluster == nil {
		return nil, ErrNotLocal
	}
	return s.cluster, nil
}

// Stop stops the server and keeps its data, for tests of outages. The mode is PostgreSQL's: "fast"
// disconnects clients and shuts down in order, "immediate" is like a crash. Stopping a stopped
// server does nothing.
func (s *Server) Stop(mode string) error {
	c, err := s.local()
	if err != nil {
		return err
	}
	return c.Stop(mode)
}

// Kill ends the server's main process with SIGKILL, as the death of its machine would, and keeps
// its data.
func (s *Server) Kill() error {
	c, err := s.local()
	if err != nil {
		return err
	}
	c.Kill()
	return nil
}

// Start starts a stopped server again, or one that crashed, with the same data and URL, and waits
// until it answers, for a minute at most. Starting a running server does nothing.
func (s *Server) Start(ctx context.Context) error {
	c, err := s.local()
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return fmt.Errorf("devpg: start: %w", err)
	}
	return nil
}

// Program returns the path of a program beside those of the server, such as pg_dump, which some
// packages leave out.
func (s *Server) Program(name string) (path string, err error) {
	c, err := s.local()
	if err != nil {
		return "", err
	}
	return c.Program(name)
}

// Standby makes a copy of the running server with pg_basebackup, on a port of its own with the same
// password, and starts it as a hot standby. Whether commits wait for it is for the server's
// synchronous_standby_names to say. It returns [cluster.ErrNoBackup] without pg_basebackup. The
// caller must close it, also after [Server.Promote].
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	c, err := s.local()
	if err != nil {
		return nil, err
	}
	standby, err := c.Standby(ctx)
	if err != nil {
		return nil, err
	}
	return newServer(found{standby.URL(), standby.Version(), s.from, standby, standby.Close}, s.logf)
}

// Upgraded stops the server for good, and starts what pg_upgrade makes of it. It returns
// [cluster.ErrNoUpgrade] without pg_upgrade. The caller must close it.
func (s *Server) Upgraded(ctx context.Context) (*Server, error) {
	c, err := s.local()
	if err != nil {
		return nil, err
	}
	upgraded, err := c.Upgraded(ctx)
	if err != nil {
		return nil, err
	}
	return newServer(found{upgraded.URL(), upgraded.Version(), s.from, upgraded, upgraded.Close}, s.logf)
}

// Promote makes a standby a server of its own, and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var promoted bool
	err := s.admin.QueryRowContext(ctx, "SELECT pg_promote(true, 60)").Scan(&promoted)
	if err == nil && !promoted {
		err = errors.New("it is still a standby after 60 s")
	}
	if err != nil {
		return fmt.Errorf("devpg: promote: %w", err)
	}
	return nil
}
