package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
)

// Each part is a process of this same program, which has its role and the places in roleVariable. It
// stops when its standard input ends: the parent closed it, or has died.
const roleVariable = "TWO_SERVICES_ROLE"

var roles = map[string]func(context.Context, places) error{"broker": runBroker, "orders": runOrders,
	"billing": runBilling}

var errNoRole = errors.New("this process is not a part")

// runRole is the main function of a part.
func runRole(ctx context.Context) error {
	words := strings.Split(os.Getenv(roleVariable), "\n")
	run := roles[words[0]]
	if run == nil || len(words) != 5 {
		return errNoRole
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	slog.SetLogLoggerLevel(slog.LevelError + 1) // the others being killed is no news
	return run(ctx, places{words[1], words[2], words[3], words[4]})
}

// part is a process that is started again after it was killed.
type part struct {
	role  string
	cmd   *exec.Cmd
	stdin io.Closer
}

func (p *part) start(at places) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(),
		roleVariable+"="+strings.Join([]string{p.role, at.orders, at.billing, at.broker, at.store}, "\n"))
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	return p.cmd.Start()
}

// kill ends the process without a warning: SIGKILL.
func (p *part) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

type parts []*part

// startAll starts the broker and the two services. The caller stops them, also after an error.
func startAll(at places) (all parts, err error) {
	for _, role := range []string{"broker", "orders", "billing"} {
		p := &part{role: role}
		if err := p.start(at); err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// stop ends the services, then the broker.
func (all parts) stop() {
	for i := len(all) - 1; i >= 0; i-- {
		_ = all[i].stdin.Close()
		_ = all[i].cmd.Wait()
	}
}
