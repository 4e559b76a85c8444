package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/txoutbox/outbox/bench/river"
)

// childArgument makes this program a child, which reads its settings from its standard input, where
// no process list shows them, and then commands. It exits when the input ends.
const childArgument = "relay-child"

// childSettings are what a child runs: relays of ours on each of the URLs, a River client, or a raw
// listener.
type childSettings struct {
	URLs   []string
	Relays int // on each URL
	Set    relaySettings
	River  *river.Settings
	Raw    bool
	Tell   bool // each handler's start
}

// word is what a child says: that it runs, that a handler started, or what it has used and done.
type word struct {
	Ready bool   `json:",omitempty"`
	N     int    `json:",omitempty"` // of the payload
	At    int64  `json:",omitempty"`
	Usage *usage `json:",omitempty"`
	Done  int64  `json:",omitempty"`
}

// process is a child, as its parent sees it.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	words  *json.Encoder
	starts chan word // of handlers
	usages chan word
	ended  chan error
}

// startProcess starts a child and waits until its relays run.
func startProcess(ctx context.Context, set childSettings) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, childArgument),
		starts: make(chan word, 10_000), usages: make(chan word, 1), ended: make(chan error, 1)}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.words = json.NewEncoder(p.stdin)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go p.listen(out, ready)

	if err := p.words.Encode(set); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	select {
	case <-ready:
		return p, nil
	case err := <-p.ended:
		p.ended <- err
		return nil, fmt.Errorf("bench: a relay's process ended: %w", err)
	case <-time.After(20 * time.Second):
		return nil, errors.Join(errors.New("bench: a relay's process does not start"), p.stop())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), p.stop())
	}
}

func (p *process) listen(out io.Reader, ready chan<- struct{}) {
	decoder := json.NewDecoder(out)
	for {
		var w word
		if decoder.Decode(&w) != nil {
			break
		}
		switch {
		case w.Ready:
			close(ready)
		case w.Usage != nil:
			p.usages <- w
		default:
			p.starts <- w
		}
	}
	close(p.starts)
	p.ended <- p.cmd.Wait()
}

// usage asks the child what it has used and done so far.
func (p *process) usage() (u usage, done int64, err error) {
	if err := p.words.Encode("usage"); err != nil {
		return u, 0, err
	}
	select {
	case w := <-p.usages:
		return *w.Usage, w.Done, nil
	case <-time.After(10 * time.Second):
		return u, 0, errors.New("bench: a relay's process does not answer")
	}
}

// stop asks the child to end, and kills it if it does not.
func (p *process) stop() error {
	_ = p.words.Encode("stop")
	_ = p.stdin.Close()
	go func() { // what it still says
		for range p.starts {
		}
	}()
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		return errors.Join(errors.New("bench: a relay's process did not stop"), <-p.ended)
	}
}
