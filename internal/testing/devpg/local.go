package devpg

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

const envBin = "OUTBOX_TEST_POSTGRES_BIN"

var (
	// ErrNotLocal is returned for a server that is no process of this machine's user: a URL or a
	// container.
	ErrNotLocal = errors.New("devpg: not a local server")
	// ErrNoBackup and ErrNoUpgrade are returned where the server's programs lack what is needed.
	ErrNoBackup  = errors.New("devpg: no program pg_basebackup beside a local server's")
	ErrNoUpgrade = errors.New("devpg: no program pg_upgrade beside a local server's")

	// errPortTaken and errStillInUse are failed starts that are worth another try.
	errPortTaken  = errors.New("port is taken")
	errStillInUse = errors.New("data directory is still in use")
)

// startTimeout bounds each start: a loaded machine can take many seconds.
const startTimeout = time.Minute

// usualPlaces are where packages put server programs that are not on PATH.
var usualPlaces = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // RHEL and others, from postgresql.org
	"/usr/libexec/postgresql*",  // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	filepath.Join(os.Getenv("ProgramFiles"), "PostgreSQL", "*", "bin"), // Windows
}

// findPrograms returns the directory of the server programs to use: the one that
// OUTBOX_TEST_POSTGRES_BIN names, else on PATH, else the newest in the usual places.
func findPrograms(ctx context.Context) (bin string, err error) {
	if dir := os.Getenv(envBin); dir != "" {
		if err := checkPrograms(dir); err != nil {
			return "", fmt.Errorf("%s: %w", envBin, err)
		}
		return filepath.Abs(dir)
	}
	for _, dir := range append(onPath(ctx), installed()...) {
		if checkPrograms(dir) == nil {
			return dir, nil
		}
	}
	return "", errors.New("no initdb and postgres on PATH or in the usual places; " + envBin + " can name their directory")
}

// checkPrograms says what a directory lacks to run a server from it.
func checkPrograms(dir string) error {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("no program %s in %s", name, dir)
		}
	}
	return nil
}

// onPath returns the directories that the program on PATH leads to: through symbolic links, and
// through pg_config where it is a wrapper.
func onPath(ctx context.Context) (dirs []string) {
	if path, err := exec.LookPath("postgres"); err == nil {
		real, _ := filepath.EvalSymlinks(path)
		dirs = append(dirs, filepath.Dir(real), filepath.Dir(path))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return dirs
}

// installed returns what is in the usual places.
func installed() (dirs []string) {
	for _, glob := range usualPlaces {
		matches, _ := filepath.Glob(glob) // the only error is a malformed glob
		dirs = append(dirs, matches...)
	}
	return newestFirst(dirs)
}

// newestFirst sorts directories by the first number in their paths, the version. Those without one
// come last.
func newestFirst(dirs []string) []string {
	version := func(path string) int {
		n, _ := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(path))
		return n
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	return dirs
}

// cluster is a PostgreSQL that this process runs, in a temporary directory of its own and on a free
// loopback port.
type cluster struct {
	bin      string // directory of initdb and postgres
	dir      *watched.Dir
	settings map[string]string
	password string
	port     int
	version  string

	mu     sync.Mutex       // held while it starts, stops or closes
	server *watched.Process // nil while stopped
}

// newCluster makes a cluster in the directory with the programs in bin, and starts it. The
// directory is the cluster's from then on.
func newCluster(ctx context.Context, dir *watched.Dir, bin string, settings map[string]string) (found, error) {
	c := &cluster{bin: bin, dir: dir, settings: settings}
	if err := c.create(ctx); err != nil {
		return found{}, errors.Join(fmt.Errorf("%s: %w", bin, err), c.close())
	}
	return c.found(), nil
}

func (c *cluster) found() found { return found{c.url(), c.version, c.bin, c, c.close} }

// create starts a server on a copy of the template: a data directory as initdb made it, in the
// user's cache directory, with its password in the file passwordFile. A copy takes a tenth of a
// second of processor time, initdb one and a half. Without a template that works, create runs
// initdb and saves the template.
func (c *cluster) create(ctx context.Context) error {
	template := c.template()
	err := c.startCopy(ctx, template)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if template != "" && !errors.Is(err, fs.ErrNotExist) { // renamed first, so that a copy of it fails
		_ = os.Rename(template, template+"-broken")
		_ = os.RemoveAll(template + "-broken")
	}
	c.password = rand.Text()
	if err := errors.Join(os.RemoveAll(c.data()), c.initdb(ctx)); err != nil {
		return err
	}
	if unfinished := template + "-" + rand.Text(); template != "" {
		removeOld(filepath.Dir(template))
		_ = os.MkdirAll(filepath.Dir(template), 0o700) // for this user alone
		if os.CopyFS(unfinished, os.DirFS(c.data())) == nil {
			_ = os.Rename(unfinished, template) // fails where another process was faster
		}
		_ = os.RemoveAll(unfinished)
	}
	return c.startOnFreePort(ctx)
}

// removeOld removes what nothing has renewed for a month: templates of other versions, and copies that a
// killed process left.
func removeOld(cache string) {
	entries, _ := os.ReadDir(cache)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 30*24*time.Hour {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
}

func (c *cluster) startCopy(ctx context.Context, template string) error {
	if template == "" {
		return fs.ErrNotExist
	}
	if err := os.CopyFS(c.data(), os.DirFS(template)); err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(c.data(), passwordFile))
	c.password = string(password)
	if err := errors.Join(err, os.Chmod(c.data(), 0o700), c.dir.Own(c.data())); err != nil {
		return err
	}
	return c.startOnFreePort(ctx)
}

const passwordFile = "outbox-devpg-password"

var initdbFlags = []string{"-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"}

// initdb makes the data directory.
func (c *cluster) initdb(ctx context.Context) error {
	file, err := c.dir.WriteFile("password", c.password)
	if err != nil {
		return err
	}
	args := append([]string{"-D", c.data(), "--pwfile", file}, initdbFlags...)
	if err := c.run(ctx, filepath.Join(c.bin, "initdb"), args...); err != nil {
		return err
	}
	return os.Rename(file, filepath.Join(c.data(), passwordFile))
}

// template is the path of the template for the programs in bin. Another build, other flags and another
// time zone, which initdb writes down, have another one. It is empty for programs in the cluster's own
// directory, as they go with it.
func (c *cluster) template() string {
	cache, err := os.UserCacheDir()
	if err != nil || strings.HasPrefix(c.bin, c.dir.Path) {
		return ""
	}
	build, err := os.Stat(filepath.Join(c.bin, "postgres"))
	if err != nil {
		return ""
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q %v %q %q", c.bin, build.ModTime(), initdbFlags, os.Getenv("TZ")))
	return filepath.Join(cache, "outbox-devpg", fmt.Sprintf("data-%x", key[:8]))
}

func (c *cluster) startOnFreePort(ctx context.Context) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 20 {
		if c.port, err = pgurl.FreePort(); err != nil {
			return err
		}
		if err = c.startOnce(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// startOnce starts the server and waits until it answers. After an error it does not run.
func (c *cluster) startOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	earlier, _ := os.ReadFile(c.log())
	args := append(flags(c.settings),
		"-D", c.data(),
		"-c", "port="+strconv.Itoa(c.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		"-c", "logging_collector=off",
		"-c", "log_destination=stderr")
	p, err := c.dir.Spawn(c.log(), filepath.Join(c.bin, "postgres"), args...)
	if err != nil {
		return err
	}
	version, err := pgurl.Await(ctx, c.url(), p.Ended)
	if err == nil {
		c.server, c.version = p, version
		return nil
	}
	p.Stop(syscall.SIGQUIT)
	log, _ := os.ReadFile(c.log())
	said := string(log[len(earlier):])
	switch {
	case strings.Contains(said, "could not bind"):
		err = errPortTaken
	case strings.Contains(said, "is still in use"), strings.Contains(said, `postmaster.pid" already exists`):
		err = errStillInUse // the children of a server that was killed are still leaving
	}
	return fmt.Errorf("postgres: %w\n%s", err, said)
}

// flags are settings as arguments of postgres. Of two with one name the last counts.
func flags(settings map[string]string) []string {
	args := []string{"-c", "max_connections=400"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

func (c *cluster) data() string { return filepath.Join(c.dir.Path, "data") }
func (c *cluster) log() string  { return filepath.Join(c.dir.Path, "log") }

// url is the address for the administrator, of the database postgres.
func (c *cluster) url() *url.URL {
	return pgurl.New(net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)), c.password)
}

// run runs a program that ends by itself.
func (c *cluster) run(ctx context.Context, program string, args ...string) error {
	return c.dir.Run(ctx, c.log(), program, args...)
}

// end sends the signals to the server, one after the other, and then kills its main process. It keeps
// the data.
func (c *cluster) end(signals ...os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if runtime.GOOS == "windows" && len(signals) > 1 { // has no signals; Stop of the process waits
		_ = exec.Command(filepath.Join(c.bin, "pg_ctl"), "stop", "-D", c.data(), "-m", "fast", "-W").Run()
	}
	if c.server != nil {
		c.server.Stop(signals...)
		c.server = nil
	}
}

// close stops the server and removes its files.
func (c *cluster) close() error {
	c.end(syscall.SIGINT, syscall.SIGQUIT)
	return c.dir.Remove()
}

// Stop stops the server and keeps its data, for tests of outages. The mode is PostgreSQL's: "fast"
// disconnects clients and shuts down in order, "immediate" is like a crash. Stopping a stopped
// server does nothing.
func (s *Server) Stop(mode string) error {
	signals, ok := map[string][]os.Signal{
		"fast":      {syscall.SIGINT, syscall.SIGQUIT},
		"immediate": {syscall.SIGQUIT},
	}[mode]
	if s.local == nil {
		return ErrNotLocal
	}
	if !ok {
		return fmt.Errorf("devpg: stop: mode is %q, want fast or immediate", mode)
	}
	s.local.end(signals...)
	return nil
}

// Kill ends the server's main process with SIGKILL, as the death of its machine would, and keeps
// its data.
func (s *Server) Kill() error {
	if s.local == nil {
		return ErrNotLocal
	}
	s.local.end()
	return nil
}

// Start starts a stopped server again, or one that crashed, with the same data and URL, and waits
// until it answers, for a minute at most. Starting a running server does nothing.
func (s *Server) Start(ctx context.Context) error {
	c := s.local
	if c == nil {
		return ErrNotLocal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil && c.server.Ended() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := c.startOnce(ctx)
		if err == nil {
			return nil
		}
		again := errors.Is(err, errPortTaken) || errors.Is(err, errStillInUse)
		if !again || ctx.Err() != nil {
			return fmt.Errorf("devpg: start: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Program returns the path of a program beside those of the server, such as pg_dump, which some
// packages leave out.
func (s *Server) Program(name string) (path string, err error) {
	if s.local == nil {
		return "", ErrNotLocal
	}
	return exec.LookPath(filepath.Join(s.local.bin, name))
}

// Standby makes a copy of the running server with pg_basebackup, on a port of its own with the same
// password, and starts it as a hot standby. Whether commits wait for it is for the server's
// synchronous_standby_names to say. It returns [ErrNoBackup] without pg_basebackup. The caller must
// close it, also after [Server.Promote].
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	if s.local == nil {
		return nil, ErrNotLocal
	}
	program, err := s.Program("pg_basebackup")
	if err != nil {
		return nil, ErrNoBackup
	}
	return s.successor(ctx, func(to *cluster) error {
		source := *s.url
		source.Path = ""
		return to.run(ctx, program, "-D", to.data(), "-d", source.String(), "-R", "-c", "fast", "-X", "stream", "--no-sync")
	})
}

// Upgraded stops the server for good, and starts what pg_upgrade makes of it: a new cluster, with
// another system identifier, of the same version. It returns [ErrNoUpgrade] without pg_upgrade. The
// caller must close it.
func (s *Server) Upgraded(ctx context.Context) (*Server, error) {
	if s.local == nil {
		return nil, ErrNotLocal
	}
	program, err := s.Program("pg_upgrade")
	if err != nil {
		return nil, ErrNoUpgrade
	}
	if err := s.Stop("fast"); err != nil {
		return nil, err
	}
	return s.successor(ctx, func(to *cluster) error {
		if err := to.initdb(ctx); err != nil {
			return err
		}
		return to.run(ctx, "/usr/bin/env", "PGPASSWORD="+to.password, program, "-U", "postgres",
			"-b", to.bin, "-B", to.bin, "-d", s.local.data(), "-D", to.data(), "-s", to.dir.Path)
	})
}

// successor starts a server with the same programs, settings and password on the data that prepare
// puts in its directory.
func (s *Server) successor(ctx context.Context, prepare func(*cluster) error) (*Server, error) {
	c := s.local
	dir, err := watched.NewDir(c.dir.InMemory)
	if err != nil {
		return nil, err
	}
	to := &cluster{bin: c.bin, dir: dir, settings: c.settings, password: c.password}
	if err = prepare(to); err == nil {
		err = to.startOnFreePort(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devpg: successor: %w", err), to.close())
	}
	return newServer(to.found(), s.logf)
}
