// Provide starts the PostgreSQL of a machine that has none, for devpg, which runs it by go run:
//
//	go run . docker FLAG...         a container of the server with these flags
//	go run . embedded HOME SCRATCH  the programs of the server in the directory HOME
//
// It prints a line of JSON, [devpg.Provided]. When its standard input ends it removes the container
// and ends.
//
// It is a program of its own for the sake of go.sum: tests of packages that apps import must not
// import its dependencies.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
)

const (
	envImage      = "OUTBOX_TEST_POSTGRES_IMAGE"
	envArchive    = "OUTBOX_TEST_POSTGRES_ARCHIVE"
	envRepository = "OUTBOX_TEST_POSTGRES_REPOSITORY"

	containerPort = "5432/tcp"
	// containerLife is when a container ends that nobody removed. It ends one in use too, so it is
	// longer than a test suite takes.
	containerLife = 2 * time.Hour
	// downloading bounds what a machine gets once: an image or an archive.
	downloading = 5 * time.Minute
)

func main() {
	signal.Ignore(os.Interrupt, syscall.SIGPIPE) // the end of the parent is the end of standard input
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	provided, end, err := provide(ctx, os.Args[1:])
	if err != nil {
		provided.Error = err.Error()
	}
	err = json.NewEncoder(os.Stdout).Encode(provided)
	if err == nil && provided.Error == "" {
		<-ctx.Done()
	}
	if end == nil {
		return
	}
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// provide returns a nil end if nothing has to be removed.
func provide(ctx context.Context, args []string) (p devpg.Provided, end func() error, err error) {
	switch {
	case len(args) > 0 && args[0] == "docker":
		return startContainer(ctx, args[1:])
	case len(args) == 3 && args[0] == "embedded":
		return p, nil, extract(ctx, args[1], args[2])
	}
	return p, nil, errors.New("usage: docker FLAG... or embedded HOME SCRATCH")
}

func startContainer(ctx context.Context, flags []string) (p devpg.Provided, end func() error, err error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return p, nil, err
	}
	pinging, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Client.PingWithContext(pinging); err != nil {
		return p, nil, fmt.Errorf("no engine at %s: %w", pool.Client.Endpoint(), err)
	}
	name, image := "outbox-devpg-"+rand.Text(), cmp.Or(os.Getenv(envImage), "postgres:17")
	end = func() error { return pool.RemoveContainerByName(name) }
	u, version, err := runContainer(ctx, pool, name, image, flags)
	if err != nil {
		return p, nil, errors.Join(fmt.Errorf("image %s: %w", image, err), end())
	}
	return devpg.Provided{URL: u.String(), Version: version, From: image}, end, nil
}

// runContainer pulls the image if need be, starts the container, and waits until it answers.
func runContainer(ctx context.Context, pool *dockertest.Pool, name, image string, flags []string) (
	u *url.URL, version string, err error) {
	repository, tag := docker.ParseRepositoryTag(image)
	tag = cmp.Or(tag, "latest")
	if _, err := pool.Client.InspectImage(repository + ":" + tag); err != nil {
		// dockertest would pull it as well, but without the context
		pulling, cancel := context.WithTimeout(ctx, downloading)
		defer cancel()
		err := pool.Client.PullImage(docker.PullImageOptions{Repository: repository, Tag: tag, Context: pulling},
			docker.AuthConfiguration{})
		if err != nil {
			return nil, "", err
		}
	}
	host, bind := "127.0.0.1", "127.0.0.1"
	if engine, err := url.Parse(pool.Client.Endpoint()); err == nil && engine.Hostname() != "" {
		host, bind = engine.Hostname(), "" // an engine elsewhere has the ports on its machine
	}
	password := rand.Text()
	made, err := pool.RunWithOptions(&dockertest.RunOptions{
		Name:         name,
		Repository:   repository,
		Tag:          tag,
		Env:          []string{"POSTGRES_PASSWORD=" + password, "POSTGRES_INITDB_ARGS=--no-sync"},
		Cmd:          append([]string{"postgres"}, flags...),
		Labels:       map[string]string{"outbox-devpg": "disposable"},
		ExposedPorts: []string{containerPort},
		PortBindings: map[docker.Port][]docker.PortBinding{containerPort: {{HostIP: bind}}},
	}, func(host *docker.HostConfig) { host.AutoRemove = true })
	if err != nil {
		return nil, "", err
	}
	_ = made.Expire(uint(containerLife.Seconds())) // asks the engine in the background
	u = pgurl.New(net.JoinHostPort(host, made.GetPort(containerPort)), password)
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	version, err = pgurl.Await(starting, u, func() error {
		_, err := pool.Client.InspectContainer(made.Container.ID)
		return err
	})
	return u, version, err
}

// extract puts the library's binaries into home. The library heeds no context, so what it still
// writes after ctx has ended goes with the scratch directory, or with this process.
func extract(ctx context.Context, home, scratch string) error {
	archive, err := archive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, downloading)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fetch(archive.BinariesPath(home), scratch) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var archiveName = regexp.MustCompile(`^embedded-postgres-binaries-[a-z]+-.+-(\d+(?:\.\d+)+)\.txz$`)

// archive says where the library finds its archive.
func archive() (embeddedpostgres.Config, error) {
	cfg := embeddedpostgres.DefaultConfig().Version(embeddedpostgres.V17)
	if repository := os.Getenv(envRepository); repository != "" {
		cfg = cfg.BinaryRepositoryURL(strings.TrimSuffix(repository, "/"))
	}
	file := os.Getenv(envArchive)
	if file == "" {
		return cfg, nil
	}
	m := archiveName.FindStringSubmatch(filepath.Base(file))
	if m == nil {
		return cfg, fmt.Errorf("%s: %s is not named embedded-postgres-binaries-<system>-<architecture>-<version>.txz",
			envArchive, filepath.Base(file))
	}
	if _, err := os.Stat(file); err != nil {
		return cfg, fmt.Errorf("%s: %w", envArchive, err)
	}
	// The address keeps the library from a download where it wants the archive of another system.
	return cfg.Version(embeddedpostgres.PostgresVersion(m[1])).CachePath(filepath.Dir(file)).
		BinaryRepositoryURL("the archive for this system beside " + file), nil
}

// fetch lets the library download and extract, which it does as part of a start only. It starts no
// server as root, and none with a watchdog, so it gets a data directory in which no server starts.
func fetch(cfg embeddedpostgres.Config, dir string) error {
	port, err := pgurl.FreePort()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "no-data")
	// With the file PG_VERSION the library takes the directory for an initialized one. It leaves a
	// log among the temporary files.
	err = errors.Join(os.Mkdir(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), nil, 0o600),
		os.Setenv("TMPDIR", dir))
	if err != nil {
		return err
	}
	server := embeddedpostgres.NewDatabase(cfg.Port(uint32(port)).Logger(io.Discard).
		RuntimePath(filepath.Join(dir, "runtime")).DataPath(data))
	err = server.Start()
	switch {
	case err == nil:
		return errors.Join(errors.New("server started without data"), server.Stop())
	case strings.HasPrefix(err.Error(), "could not start postgres"):
		return nil
	}
	return err
}
