package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"time"

	"github.com/txoutbox/outbox/bench/river"
)

// childArgument makes this program a child, which its parent calls by net/rpc over its standard
// input and output. It exits when the input ends.
const childArgument = "relay-child"

// The types of arguments and results are exported, as net/rpc asks.

// ChildSettings are what a child runs: relays of ours on each of the URLs, a River client, or a raw
// listener.
type ChildSettings struct {
	URLs   []string
	Relays int // on each URL
	Set    relaySettings
	River  *river.Settings
	Raw    bool
}

// process is a child, as its parent sees it.
type process struct {
	cmd *exec.Cmd
	*rpc.Client
}

// startProcess starts a child and waits until its relays run.
func startProcess(ctx context.Context, set ChildSettings) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, childArgument)}
	p.cmd.Stderr = os.Stderr
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		return nil, err
	}
	p.Client = rpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})
	if err := p.call(ctx, 20*time.Second, "Start", set, new(bool)); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// call calls a method of child.
func (p *process) call(ctx context.Context, within time.Duration, method string, args, reply any) error {
	select {
	case done := <-p.Go("Child."+method, args, reply, make(chan *rpc.Call, 1)).Done:
		if done.Error != nil {
			return fmt.Errorf("bench: %s of a relay's process: %w", method, done.Error)
		}
		return nil
	case <-time.After(within):
		return fmt.Errorf("bench: %s of a relay's process takes longer than %s", method, within)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// used asks the child what it has used so far.
func (p *process) used(ctx context.Context) (u Usage, err error) {
	err = p.call(ctx, 10*time.Second, "Used", true, &u)
	return u, err
}

// started waits for the start of the handler of task n.
func (p *process) started(ctx context.Context, n int) (at int64, err error) {
	err = p.call(ctx, 10*time.Second, "Started", n, &at)
	return at, err
}

// stop ends the child, and kills it if it does not end.
func (p *process) stop() error {
	kill := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.Close() // of its standard input
	return p.cmd.Wait()
}
