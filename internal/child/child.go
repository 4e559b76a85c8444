// Package child starts this program once more, as another process of the same tool or test, which
// ends when this one does.
package child

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// env makes a program a child. Its value is what Start was given, in JSON.
const env = "OUTBOX_CHILD"

// Run returns at once, unless this process was started by Start. Then it does the work and ends the
// process. main or TestMain calls it first.
func Run[Config any](work func(Config) error) {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent is gone
	}()
	var c Config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = work(c)
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
	stdin, err := cmd.StdinPipe() // stays open for as long as this process lives
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Process: cmd.Process, Ended: make(chan struct{})}
	go func() {
		p.Err = cmd.Wait()
		_ = stdin.Close()
		close(p.Ended)
	}()
	return p, nil
}
