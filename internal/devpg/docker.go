package devpg

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"

	"github.com/txoutbox/outbox/internal/devpg/cluster"
	"github.com/txoutbox/outbox/internal/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/devpg/watched"
)

const (
	envImage      = "OUTBOX_TEST_POSTGRES_IMAGE"
	containerPort = "5432/tcp"

	// containerLife is when a container ends that nobody removed. It ends one in use too, so it is
	// longer than a test suite takes.
	containerLife = 2 * time.Hour
)

// containerScript removes the container $2 of the engine $1, which may still be making it.
const containerScript = `
last=
while read -r line; do last=$line; done
[ "$last" = removed ] && exit
for n in 1 2 3 4 5; do docker -H "$1" rm -f -v "$2"; sleep 1; done
`

// container is a PostgreSQL in Docker.
type container struct {
	pool     *dockertest.Pool
	name     string
	watchdog *watched.Watchdog // nil without the command docker, which it needs
	url      *url.URL
	version  string
}

// Close removes the container. If it cannot, the watchdog tries again.
func (c *container) Close() error {
	err := c.pool.RemoveContainerByName(c.name)
	if c.watchdog != nil {
		if err == nil {
			c.watchdog.Tell("removed")
		}
		c.watchdog.Close()
	}
	return err
}

func openDocker(ctx context.Context, cfg config) (found, error) {
	image := cmp.Or(os.Getenv(envImage), "postgres:17")
	pool, err := dockertest.NewPool("")
	if err != nil {
		return found{}, err
	}
	pinging, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Client.PingWithContext(pinging); err != nil {
		return found{}, fmt.Errorf("no engine at %s: %w", pool.Client.Endpoint(), err)
	}
	c := &container{pool: pool, name: "outbox-devpg-" + rand.Text()}
	if _, err := exec.LookPath("docker"); err == nil {
		if c.watchdog, err = watched.NewWatchdog(containerScript, pool.Client.Endpoint(), c.name); err != nil {
			return found{}, err
		}
	}
	if err := c.run(ctx, image, cluster.Flags(cfg.settings)); err != nil {
		return found{}, errors.Join(fmt.Errorf("image %s: %w", image, err), c.Close())
	}
	return found{c.url, c.version, image, nil, c.Close}, nil
}

// run pulls the image if need be, starts the container, and waits until it answers.
func (c *container) run(ctx context.Context, image string, flags []string) error {
	repository, tag := docker.ParseRepositoryTag(image)
	tag = cmp.Or(tag, "latest")
	if _, err := c.pool.Client.InspectImage(repository + ":" + tag); err != nil {
		// dockertest would pull it as well, but without the context
		pulling, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		err := c.pool.Client.PullImage(docker.PullImageOptions{Repository: repository, Tag: tag, Context: pulling},
			docker.AuthConfiguration{})
		if err != nil {
			return err
		}
	}
	host, bind := "127.0.0.1", "127.0.0.1"
	if engine, err := url.Parse(c.pool.Client.Endpoint()); err == nil && engine.Hostname() != "" {
		host, bind = engine.Hostname(), "" // an engine elsewhere has the ports on its machine
	}
	password := rand.Text()
	made, err := c.pool.RunWithOptions(&dockertest.RunOptions{
		Name:         c.name,
		Repository:   repository,
		Tag:          tag,
		Env:          []string{"POSTGRES_PASSWORD=" + password, "POSTGRES_INITDB_ARGS=--no-sync"},
		Cmd:          append([]string{"postgres"}, flags...),
		Labels:       map[string]string{"outbox-devpg": "disposable"},
		ExposedPorts: []string{containerPort},
		PortBindings: map[docker.Port][]docker.PortBinding{containerPort: {{HostIP: bind}}},
	}, func(host *docker.HostConfig) { host.AutoRemove = true })
	if err != nil {
		return err
	}
	_ = made.Expire(uint(containerLife.Seconds())) // asks the engine in the background
	c.url = pgurl.New(net.JoinHostPort(host, made.GetPort(containerPort)), password)
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c.version, err = pgurl.Await(starting, c.url, func() error {
		_, err := c.pool.Client.InspectContainer(made.Container.ID)
		return err
	})
	return err
}
