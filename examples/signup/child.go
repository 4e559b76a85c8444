package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

// The demo's relays are processes of this same program. They have the address of the mail server in
// childVariable, and stop when their standard input ends: the demo closed it, or has died.
const childVariable = "SIGNUP_RELAY_MAIL_SERVER"

// startChild starts a relay process, which stops when ctx ends.
func startChild(ctx context.Context, url, mailServer string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVariable+"="+mailServer, devdb.Variable+"="+url)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = func() error {
		stdin.Close()
		return os.ErrProcessDone // so that Wait returns no error if it ends well
	}
	cmd.WaitDelay = 20 * time.Second // then it is killed
	return cmd, cmd.Start()
}

// runChild is the main function of a relay process.
func runChild(ctx context.Context, url, mailServer string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	slog.SetLogLoggerLevel(slog.LevelError) // a killed relay is news only to the others
	db, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	reg, err := newRegistry(db, mailServer)
	if err != nil {
		return err
	}
	reg.Use(linger)
	r, err := relay.New(db, reg, relay.Config{ListenDSN: url, DrainTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// linger waits before and after each run, so that a kill finds runs that have not begun their work,
// and runs that have done it and are not yet on record.
func linger(next handlers.Func) handlers.Func {
	const most = 100 * time.Millisecond
	return func(ctx context.Context, call *handlers.Call) error {
		if err := wait(ctx, rand.N(most)); err != nil {
			return err
		}
		err := next(ctx, call)
		return errors.Join(err, wait(ctx, rand.N(most)))
	}
}

// wait returns after d, or with an error as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
