package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// startTimeout bounds each start of a server when the caller's context does not: a loaded CI
// machine can take many seconds, one that takes a minute never will.
const startTimeout = time.Minute

// cluster is a PostgreSQL that this process runs: a directory and, unless it is stopped, a process.
type cluster struct {
	bin      string // directory of initdb and postgres
	dir      *directory
	port     int
	password string
	settings map[string]string
	memory   bool // the directory is in memory, if it can be

	mu     sync.Mutex // held by start, stop and close
	server *process   // nil while stopped
	closed bool
}

func openLocal(ctx context.Context, cfg config) (*Server, error) {
	bin, err := findBinaries(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := newDirectory(cfg.memory)
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, kindLocal, bin, dir, cfg)
}

// startCluster makes a new cluster in dir, which it owns from then on, and starts it.
func startCluster(ctx context.Context, kind, bin string, dir *directory, cfg config) (*Server, error) {
	c := &cluster{bin: bin, dir: dir, password: randomHex(16), settings: cfg.settings, memory: cfg.memory}
	var t template // embedded binaries are in a directory that goes with the server
	if kind == kindLocal {
		t, _ = templateOf(bin) // without a template initdb makes each data directory
	}
	version, err := c.create(ctx, t)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", bin, err), c.close())
	}
	return &Server{
		kind:    kind,
		url:     serverURL(c.address(), c.password),
		detail:  "PostgreSQL " + version + " from " + bin,
		cluster: c,
		release: c.close,
	}, nil
}

func (c *cluster) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }
func (c *cluster) data() string    { return filepath.Join(c.dir.path, "data") }
func (c *cluster) log() string     { return filepath.Join(c.dir.path, "log") }

// create makes the data directory and starts the server on a free port.
func (c *cluster) create(ctx context.Context, t template) (version string, err error) {
	if err := c.initialize(ctx, t); err != nil {
		return "", err
	}
	return c.runOnFreePort(ctx)
}

// initialize makes the data directory: a copy of the template or, where there is none yet, by
// initdb.
func (c *cluster) initialize(ctx context.Context, t template) error {
	if t == (template{}) {
		return c.initdb(ctx)
	}
	password, err := t.restore(c.data(), c.dir.own)
	if err == nil {
		c.password = password
		return nil
	}
	if err := os.RemoveAll(c.data()); err != nil {
		return err
	}
	if err := c.initdb(ctx); err != nil {
		return err
	}
	_ = t.save(c.data(), c.password) // the next data directory takes longer without it
	return nil
}

// runOnFreePort starts the server for the first time.
func (c *cluster) runOnFreePort(ctx context.Context) (version string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 20 {
		if c.port, err = freePort(); err != nil {
			return "", err
		}
		version, err = c.run(ctx)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return version, err
}

var initdbFlags = []string{"-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"}

func (c *cluster) initdb(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	passwordFile := filepath.Join(c.dir.path, "password")
	verifier, err := verifier(c.password)
	if err != nil {
		return err
	}
	if err := c.dir.writeFile(passwordFile, verifier); err != nil {
		return err
	}
	defer os.Remove(passwordFile)
	p, err := c.dir.spawn(c.log(), c.bin, "initdb", append([]string{"-D", c.data(), "--pwfile", passwordFile}, initdbFlags...)...)
	if err != nil {
		return err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		c.halt(p, "fast")
	}
	if p.err != nil || ctx.Err() != nil {
		return fmt.Errorf("initdb: %w\n%s", errors.Join(ctx.Err(), p.err), c.logTail(0))
	}
	return nil
}

// freePort returns a loopback port that nobody listens on. It looks below the range that systems
// take ports for outgoing connections from: there a port stays free while its server is stopped.
// Another process may still be faster; then the server says so and the caller tries the next.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + rand.IntN(15000)
		var l net.Listener
		if l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free loopback port: %w", err)
}

// errPortTaken and errStillInUse are starts that are worth another try.
var (
	errPortTaken  = errors.New("port is taken")
	errStillInUse = errors.New("data directory is still in use")
)

func (c *cluster) start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("devpg: start: server is closed")
	}
	if c.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		_, err := c.run(ctx)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errPortTaken) && !errors.Is(err, errStillInUse):
			return fmt.Errorf("devpg: start: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("devpg: start: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *cluster) running() bool {
	if c.server == nil {
		return false
	}
	select {
	case <-c.server.exited:
		return false
	default:
		return true
	}
}

// run starts the server once and waits until it answers. After an error it does not run.
func (c *cluster) run(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var logged int64
	if info, err := os.Stat(c.log()); err == nil {
		logged = info.Size()
	}
	p, err := c.dir.spawn(c.log(), c.bin, "postgres", append([]string{"-D", c.data()}, c.arguments()...)...)
	if err != nil {
		return "", err
	}
	c.server = p
	version, err = untilReady(ctx, serverURL(c.address(), c.password), p.exited)
	switch {
	case err == nil:
		return version, nil
	case c.running():
		c.halt(p, "immediate")
		return "", fmt.Errorf("%w\n%s", err, c.logTail(logged))
	}
	tail := c.logTail(logged)
	err = fmt.Errorf("postgres ended at once: %v\n%s", p.err, tail)
	switch {
	case strings.Contains(tail, "could not bind"):
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	case strings.Contains(tail, "is still in use"), strings.Contains(tail, `postmaster.pid" already exists`):
		// the children of a server that was killed are still leaving
		err = fmt.Errorf("%w: %w", errStillInUse, err)
	}
	return "", err
}

// arguments are the server's settings as flags; of two with one name the last counts.
func (c *cluster) arguments() []string {
	return append(flags(c.settings),
		"-c", "port="+strconv.Itoa(c.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		"-c", "logging_collector=off",
		"-c", "log_destination=stderr")
}

// flags are settings as arguments of postgres.
func flags(settings map[string]string) []string {
	all := map[string]string{"max_connections": "400"}
	maps.Copy(all, settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// stopTimeouts are how long a shutdown may take before the next, harder one. PostgreSQL itself
// kills what does not leave an immediate shutdown within 5 s.
var stopTimeouts = map[string]time.Duration{"fast": 10 * time.Second, "immediate": 8 * time.Second}

func (c *cluster) stop(mode string) error {
	if _, ok := stopTimeouts[mode]; !ok {
		return fmt.Errorf("devpg: stop: mode is %q, want fast or immediate", mode)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	c.halt(c.server, mode)
	c.server = nil
	return nil
}

// halt ends a server process, whatever it takes, and returns when it is gone.
func (c *cluster) halt(p *process, mode string) {
	for _, m := range []string{"fast", "immediate"} {
		if m == "fast" && mode == "immediate" {
			continue
		}
		p.shutdown(c.bin, c.data(), m)
		select {
		case <-p.exited:
			return
		case <-time.After(stopTimeouts[m]):
		}
	}
	p.kill()
	<-p.exited
}

func (c *cluster) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		c.halt(c.server, "fast")
		c.server = nil
	}
	c.closed = true
	return c.dir.remove()
}

// logTail returns the end of what the server logged from the given offset on.
func (c *cluster) logTail(offset int64) string {
	const limit = 4 << 10
	f, err := os.Open(c.log())
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		offset = max(offset, info.Size()-limit)
	}
	tail, _ := io.ReadAll(io.NewSectionReader(f, offset, limit)) // what can be read is enough for a message
	return strings.TrimSpace(string(tail))
}
