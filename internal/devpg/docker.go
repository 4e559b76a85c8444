package devpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	envImage     = "OUTBOX_TEST_POSTGRES_IMAGE"
	defaultImage = "postgres:17"

	// containerLife is when a container ends that nobody closed and no watchdog removed. It also ends one in use, so
	// it is longer than a test suite or a look at an example takes.
	containerLife = 2 * time.Hour
	containerPort = "5432/tcp"
)

func openDocker(ctx context.Context, settings map[string]string) (*Server, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, err
	}
	if err := pingEngine(ctx, pool); err != nil {
		return nil, err
	}
	image := os.Getenv(envImage)
	if image == "" {
		image = defaultImage
	}
	repository, tag := splitImage(image)
	if err := ensureImage(ctx, pool, repository, tag); err != nil {
		return nil, fmt.Errorf("image %s: %w", image, err)
	}

	name := "outbox-devpg-" + randomHex(8)
	password := randomHex(16)
	local := localEngine(pool)
	forget, err := watchContainer(pool, name)
	if err != nil {
		return nil, err
	}
	container, err := pool.RunWithOptions(&dockertest.RunOptions{
		Name:         name,
		Repository:   repository,
		Tag:          tag,
		Env:          []string{"POSTGRES_PASSWORD=" + password, "POSTGRES_INITDB_ARGS=--no-sync"},
		Cmd:          append([]string{"postgres"}, flags(settings)...),
		Labels:       map[string]string{"outbox-devpg": "disposable"},
		ExposedPorts: []string{containerPort},
		PortBindings: map[docker.Port][]docker.PortBinding{containerPort: {{HostIP: bindAddress(local)}}},
	}, func(host *docker.HostConfig) { host.AutoRemove = true })
	if err != nil {
		// a container that was made but could not start would stay
		err = errors.Join(err, pool.RemoveContainerByName(name))
		forget()
		return nil, err
	}
	container.Expire(uint(containerLife.Seconds())) // never an error: it asks the engine in the background
	remove := func() error {
		err := pool.Purge(container)
		if gone := (*docker.NoSuchContainer)(nil); errors.As(err, &gone) {
			err = nil
		}
		if err == nil {
			forget()
		}
		return err
	}

	host := "127.0.0.1"
	if !local {
		if u, err := url.Parse(pool.Client.Endpoint()); err == nil {
			host = u.Hostname()
		}
	}
	u := serverURL(net.JoinHostPort(host, container.GetPort(containerPort)), password)
	version, err := awaitContainer(ctx, pool, container.Container.ID, u)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container of %s: %w", image, err), remove())
	}
	return &Server{kind: kindDocker, url: u, detail: "PostgreSQL " + version + " from " + image, release: remove}, nil
}

func pingEngine(ctx context.Context, pool *dockertest.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Client.PingWithContext(ctx); err != nil {
		return fmt.Errorf("no engine at %s: %w", pool.Client.Endpoint(), err)
	}
	return nil
}

// watchContainer has a watchdog remove the container when this process ends, if the docker command is there for it to use;
// otherwise the container's expiry has to do. forget ends the watch.
func watchContainer(pool *dockertest.Pool, name string) (forget func(), err error) {
	if _, err := exec.LookPath("docker"); err != nil {
		return func() {}, nil
	}
	w, err := newWatchdog(containerScript, pool.Client.Endpoint(), name)
	if err != nil {
		return nil, err
	}
	return func() {
		w.tell("removed") // without a watchdog there is nobody to tell
		w.close()
	}, nil
}

// splitImage splits repository:tag; a registry's port is part of the repository.
func splitImage(image string) (repository, tag string) {
	i := strings.LastIndexByte(image, ':')
	if i < 0 || strings.Contains(image[i:], "/") {
		return image, "latest"
	}
	return image[:i], image[i+1:]
}

// ensureImage pulls the image if the engine does not have it; dockertest would do so too, but not heed ctx.
func ensureImage(ctx context.Context, pool *dockertest.Pool, repository, tag string) error {
	if _, err := pool.Client.InspectImage(repository + ":" + tag); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return pool.Client.PullImage(docker.PullImageOptions{Repository: repository, Tag: tag, Context: ctx},
		docker.AuthConfiguration{})
}

// localEngine tells an engine on this machine from one elsewhere, whose ports are on its machine.
func localEngine(pool *dockertest.Pool) bool {
	scheme, _, _ := strings.Cut(pool.Client.Endpoint(), "://")
	return scheme == "unix" || scheme == "npipe"
}

func bindAddress(local bool) string {
	if local {
		return "127.0.0.1"
	}
	return ""
}

func awaitContainer(ctx context.Context, pool *dockertest.Pool, id string, u *url.URL) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ended := make(chan struct{})
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		pool.Client.WaitContainerWithContext(id, ctx) // whatever the outcome, it is over
		if ctx.Err() == nil {
			close(ended)
		}
	}()
	version, err = untilReady(ctx, u, ended)
	cancel()
	<-waited
	return version, err
}
