package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// The demo's relays are processes of this same program, told apart by a variable. A child reads its
// settings from its standard input, where no process list shows them, and then the word to stop. When the
// input ends without it the parent is dead, and its database with it: the child exits at once.

const childVariable = "SIGNUP_RELAY_CHILD"

type childSettings struct {
	DatabaseURL string
	MailServer  string
	Linger      time.Duration
}

func isRelayChild() bool { return os.Getenv(childVariable) != "" }

// relayChild is the main function of a child; it returns the exit code.
func relayChild(in io.Reader) int {
	signal.Ignore(os.Interrupt) // a Ctrl-C reaches parent and children; the parent decides
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runChild(ctx, in); err != nil {
		fmt.Fprintf(os.Stderr, "signup: relay %d: %v\n", os.Getpid(), err)
		return 1
	}
	return 0
}

func runChild(ctx context.Context, in io.Reader) error {
	var set childSettings
	words := json.NewDecoder(in)
	if err := words.Decode(&set); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		var word string
		if words.Decode(&word) != nil {
			os.Exit(1)
		}
		cancel()
	}()

	const workers = 10
	db, err := openPool(set.DatabaseURL, workers+5) // the relay's two, and the handlers' own
	if err != nil {
		return err
	}
	defer db.Close()
	m, err := newMailer(set.MailServer)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	reg := newRegistry(db, m, logger)
	reg.Use(linger(set.Linger))
	r, err := relay.New(db, reg, relay.Config{Workers: workers, ListenDSN: set.DatabaseURL, Logger: logger, DrainTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// linger waits before and after each run, up to most altogether, so that a kill finds runs that have not
// begun their work, and runs that have done it and are not yet on record.
func linger(most time.Duration) handlers.Middleware {
	return func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			if err := wait(ctx, rand.N(most/2+1)); err != nil {
				return err
			}
			err := next(ctx, call)
			return errors.Join(err, wait(ctx, rand.N(most/2+1)))
		}
	}
}

// wait returns after d, or with an error as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// child is a running relay process, as its parent sees it.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{} // closed after the exit
	err    error         // of the exit; to be read once exited is closed
}

func startChild(set childSettings) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a relay: %w", err)
	}
	c := &child{cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.exited)
	}()
	if err := json.NewEncoder(stdin).Encode(set); err != nil {
		c.kill()
		return nil, fmt.Errorf("start a relay: %w", err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill is SIGKILL: the child cannot see it coming.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // an error means that it has ended
	<-c.exited
}

// askToStop lets the child finish what it runs.
func (c *child) askToStop() {
	_ = json.NewEncoder(c.stdin).Encode("stop") // an error means that it has ended
}

// awaitEnd returns how a child that was asked to stop has ended, if not well.
func (c *child) awaitEnd() error {
	select {
	case <-c.exited:
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines, on standard error, say why
		select {
		case <-c.exited:
		case <-time.After(5 * time.Second):
			c.kill()
		}
	}
	if c.err != nil {
		return fmt.Errorf("relay %d: %w", c.pid(), c.err)
	}
	return nil
}
