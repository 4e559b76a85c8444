// Package cluster runs PostgreSQL from server programs on this machine: each cluster has a
// temporary directory of its own and a free loopback port.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// startTimeout bounds each start: a loaded machine can take many seconds.
const startTimeout = time.Minute

// Cluster is a PostgreSQL that this process runs. Its methods are safe for concurrent use.
type Cluster struct {
	bin      string // directory of initdb and postgres
	dir      *watched.Dir
	settings map[string]string
	password string
	port     int
	version  string

	mu     sync.Mutex       // held while it starts, stops or closes
	server *watched.Process // nil while stopped
}

// New makes a cluster in the directory with the programs in bin, and starts it. The directory is
// the cluster's from then on.
func New(ctx context.Context, dir *watched.Dir, bin string, settings map[string]string) (*Cluster, error) {
	c := &Cluster{bin: bin, dir: dir, settings: settings}
	if err := c.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", bin, err), c.Close())
	}
	return c, nil
}

// create starts a server on a copy of the template, or on what initdb makes.
func (c *Cluster) create(ctx context.Context) (err error) {
	t := templateOf(c.bin, c.dir)
	if c.password, err = t.restore(c.data(), c.dir); err == nil {
		if err = c.startOnFreePort(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.remove()
	}
	if err := os.RemoveAll(c.data()); err != nil {
		return err
	}
	if c.password, err = initdb(ctx, c.dir, c.bin, c.data(), c.log()); err != nil {
		return err
	}
	_ = t.save(c.data(), c.password) // without it the next server takes longer to start
	return c.startOnFreePort(ctx)
}

func (c *Cluster) startOnFreePort(ctx context.Context) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 20 {
		if c.port, err = pgurl.FreePort(); err != nil {
			return err
		}
		if err = c.run(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

func (c *Cluster) data() string { return filepath.Join(c.dir.Path, "data") }
func (c *Cluster) log() string  { return filepath.Join(c.dir.Path, "log") }

// URL is the address for the administrator, of the database postgres.
func (c *Cluster) URL() *url.URL {
	return pgurl.New(net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)), c.password)
}

// Version is the server's, as server_version says it.
func (c *Cluster) Version() string { return c.version }

// Program returns the path of a program beside the server's, which some packages leave out.
func (c *Cluster) Program(name string) (string, error) {
	return exec.LookPath(filepath.Join(c.bin, name))
}

// Start starts a stopped or crashed server with the same data and port, and waits until it answers.
func (c *Cluster) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil && c.server.Ended() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := c.run(ctx)
		if !errors.Is(err, errPortTaken) && !errors.Is(err, errStillInUse) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stop shuts the server down in PostgreSQL's mode fast or immediate, and keeps its data.
func (c *Cluster) Stop(mode string) error {
	signals, ok := map[string][]os.Signal{
		"fast":      {syscall.SIGINT, syscall.SIGQUIT},
		"immediate": {syscall.SIGQUIT},
	}[mode]
	if !ok {
		return fmt.Errorf("devpg: stop: mode is %q, want fast or immediate", mode)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if runtime.GOOS == "windows" { // has no signals; Stop of the process waits
		_ = exec.Command(filepath.Join(c.bin, "pg_ctl"), "stop", "-D", c.data(), "-m", mode, "-W").Run()
	}
	c.end(signals...)
	return nil
}

// Kill ends the server's main process as the death of its machine would, and keeps its data.
func (c *Cluster) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

func (c *Cluster) end(signals ...os.Signal) {
	if c.server != nil {
		c.server.Stop(signals...)
		c.server = nil
	}
}

// Close stops the server and removes its files.
func (c *Cluster) Close() error {
	return errors.Join(c.Stop("fast"), c.dir.Remove())
}
