// Package child starts this program once more, as another process of the same tool or test, which
// ends when this process does.
package child

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

// env makes a program a child. Its value is Start's config in JSON.
const env = "OUTBOX_CHILD"

// grace is how long a child may take to end.
const grace = 20 * time.Second

// Run returns at once, unless this process was started by Start. Then it does the work and ends the
// process. main or TestMain calls it first. The context ends when the parent calls Stop or has died.
func Run[Config any](work func(context.Context, Config) error) {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	signal.Ignore(os.Interrupt) // Ctrl-C reaches parent and children; the parent decides
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
		time.Sleep(grace)
		os.Exit(1)
	}()
	var c Config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = work(ctx, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// Process is a child.
type Process struct {
	*os.Process
	Ended chan struct{} // closed when it has ended and was waited for
	Err   error         // then

	stdin io.Closer // stays open for as long as this process lives, or until Stop
}

// Start starts a child that is given the config. All that it prints goes to output.
func Start(config any, output io.Writer) (*Process, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	// The race detector lets a process that calls os.Exit work on for a second, unless told not to.
	cmd.Env = append(os.Environ(), env+"="+string(text), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr = output, output
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Process: cmd.Process, Ended: make(chan struct{}), stdin: stdin}
	go func() {
		p.Err = cmd.Wait()
		_ = stdin.Close()
		close(p.Ended)
	}()
	return p, nil
}

// Stop asks the child to end, and returns the error of its exit.
func (p *Process) Stop() error {
	_ = p.stdin.Close()
	<-p.Ended
	return p.Err
}

// Kill9 kills the child with SIGKILL, where there are signals, and waits for its end.
func (p *Process) Kill9() {
	_ = p.Kill()
	<-p.Ended
}
