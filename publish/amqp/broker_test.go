package outboxamqp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// mostBytes is the broker's max_message_size.
const mostBytes = 64 << 10

// rabbit is a RabbitMQ of the tests' own on the loopback interface. Its files are in a temporary
// directory, and it has an epmd of its own, which Erlang's nodes need.
type rabbit struct {
	dir, epmdDir *watched.Dir
	epmd, server *watched.Process
	program      string
	port         int
	env          []string
}

var (
	startOnce sync.Once
	started   *rabbit
	startErr  error
)

// broker is the package's RabbitMQ, which the first test starts.
func broker(t *testing.T) *rabbit {
	t.Helper()
	// Debian's program in /usr/sbin writes to /var/log.
	program := needs.Program(t, "rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
	epmd := needs.Program(t, "erlang-base", "epmd")
	startOnce.Do(func() { started, startErr = newRabbit(program, epmd) })
	if startErr != nil {
		t.Fatal(startErr)
	}
	return started
}

func newRabbit(program, epmd string) (r *rabbit, err error) {
	r = &rabbit{program: program}
	defer func() {
		if err != nil {
			r.close()
			r = nil
		}
	}()
	if r.dir, err = watched.NewDir(true); err != nil {
		return r, err
	}
	if r.epmdDir, err = watched.NewDir(true); err != nil {
		return r, err
	}
	var ports [3]int
	for i := range ports {
		if ports[i], err = pgurl.FreePort(); err != nil {
			return r, err
		}
	}
	r.port = ports[0]
	for name, content := range map[string]string{
		".erlang.cookie": "outbox" + strconv.Itoa(os.Getpid()),
		"plugins":        "[].",
		"rabbitmq.conf": fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nmax_message_size = %d\n", r.port, mostBytes) +
			"log.console = true\nlog.console.level = warning\nlog.file = false\n" +
			// RabbitMQ 3.10 takes the one for the other.
			"default_permissions.configure = .*\ndefault_permissions.read = " +
			"^(?!forbidden).*\ndefault_permissions.write = ^(?!forbidden).*\n",
	} {
		if _, err = r.dir.WriteFile(name, content); err != nil {
			return r, err
		}
	}
	in := func(name string) string { return filepath.Join(r.dir.Path, name) }
	r.env = []string{
		"HOME=" + r.dir.Path, "RABBITMQ_NODENAME=outbox" + strconv.Itoa(ports[0]) + "@localhost",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(ports[1]),
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + strconv.Itoa(ports[2]),
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"), "RABBITMQ_LOG_BASE=" + in("log"),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("plugins"), "RABBITMQ_CONF_ENV_FILE=" + in("none"),
		"RABBITMQ_ALLOW_INPUT=1", // the shell becomes the server, so that its number is the server's
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-noinput +S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
	}
	if r.epmd, err = r.epmdDir.Spawn(filepath.Join(r.epmdDir.Path, "output"), epmd, "-address", "127.0.0.1", "-port",
		strconv.Itoa(ports[2])); err != nil {
		return r, err
	}
	return r, r.start()
}

// start starts the broker on its port, with its data, and waits until it answers.
func (r *rabbit) start() (err error) {
	output := filepath.Join(r.dir.Path, "output")
	if r.server, err = r.dir.Spawn(output, "env", append(r.env, r.program)...); err != nil {
		return err
	}
	for deadline := time.After(2 * time.Minute); ; {
		c, err := amqp.Dial(r.url())
		if err == nil {
			return c.Close()
		}
		if ended := r.server.Ended(); ended != nil {
			err = ended
		} else {
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-deadline:
			}
		}
		said, _ := os.ReadFile(output)
		return fmt.Errorf("rabbitmq-server: %w\n%s", err, said)
	}
}

func (r *rabbit) close() {
	for _, p := range []*watched.Process{r.server, r.epmd} {
		if p != nil {
			p.Stop()
		}
	}
	for _, d := range []*watched.Dir{r.dir, r.epmdDir} {
		if d != nil {
			_ = d.Remove()
		}
	}
}

func (r *rabbit) address() string { return "127.0.0.1:" + strconv.Itoa(r.port) }
func (r *rabbit) url() string     { return "amqp://guest:guest@" + r.address() + "/" }

// ctl runs rabbitmqctl.
func (r *rabbit) ctl(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(r.program), "rabbitmqctl"), args...)
	cmd.Dir, cmd.Env = r.dir.Path, append(os.Environ(), r.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(errors.Join(err, errors.New(string(out))))
	}
}
