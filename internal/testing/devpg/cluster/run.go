package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
)

// errPortTaken and errStillInUse are failed starts that are worth another try.
var (
	errPortTaken  = errors.New("port is taken")
	errStillInUse = errors.New("data directory is still in use")
)

// run starts the server once and waits until it answers. After an error it does not run.
func (c *Cluster) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	earlier := len(readLog(c.log()))
	args := append(Flags(c.settings),
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
	version, err := pgurl.Await(ctx, c.URL(), p.Ended)
	if err == nil {
		c.server, c.version = p, version
		return nil
	}
	p.Stop(syscall.SIGQUIT)
	said := readLog(c.log())[earlier:]
	switch {
	case strings.Contains(said, "could not bind"):
		return fmt.Errorf("%w\n%s", errPortTaken, said)
	case strings.Contains(said, "is still in use"), strings.Contains(said, `postmaster.pid" already exists`):
		// the children of a server that was killed are still leaving
		return fmt.Errorf("%w\n%s", errStillInUse, said)
	}
	return fmt.Errorf("postgres: %w\n%s", err, said)
}

// Flags are settings as arguments of postgres. Of two with one name the last counts.
func Flags(settings map[string]string) []string {
	args := []string{"-c", "max_connections=400"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// readLog is what can be read of a log, for a message.
func readLog(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
