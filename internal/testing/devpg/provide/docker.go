package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
)

const (
	envImage      = "OUTBOX_TEST_POSTGRES_IMAGE"
	containerPort = "5432/tcp"

	// containerLife is when a container ends that nobody removed. It ends one in use too, so it is
	// longer than a test suite takes.
	containerLife = 2 * time.Hour
)

// container is a PostgreSQL in Docker.
type container struct {
	pool    *dockertest.Pool
	name    string
	image   string
	url     *url.URL
	version string
}

func (c *container) remove() error { return c.pool.RemoveContainerByName(c.name) }

func startContainer(ctx context.Context, flags []string) (*container, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, err
	}
	pinging, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Client.PingWithContext(pinging); err != nil {
		return nil, fmt.Errorf("no engine at %s: %w", pool.Client.Endpoint(), err)
	}
	c := &container{pool: pool, name: "outbox-devpg-" + rand.Text(), image: cmp.Or(os.Getenv(envImage), "postgres:17")}
	if err := c.run(ctx, flags); err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", c.image, err), c.remove())
	}
	return c, nil
}

// run pulls the image if need be, starts the container, and waits until it answers.
func (c *container) run(ctx context.Context, flags []string) error {
	repository, tag := docker.ParseRepositoryTag(c.image)
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
