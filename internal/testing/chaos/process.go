//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/child"
)

// process is one of the app.
type process struct {
	*child.Process
	began time.Time
}

func startProcess(c app.Config, log string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p, err := child.Start(c, output)
	return &process{p, time.Now()}, err
}

func (p *process) signal(s syscall.Signal) { _ = p.Signal(s) }

// young is how long a process may not know of SIGTERM yet.
const young = 2 * time.Second

var errStays = errors.New("it did not end after SIGTERM")

// terminate asks the process to end, and kills it if it has not within d.
func (p *process) terminate(d time.Duration) error {
	p.signal(syscall.SIGCONT) // it may be frozen
	p.signal(syscall.SIGTERM)
	select {
	case <-p.Ended:
		if p.Err != nil && time.Since(p.began) > young {
			return fmt.Errorf("it ended with: %w", p.Err)
		}
		return nil
	case <-time.After(d):
		p.signal(syscall.SIGKILL)
		<-p.Ended
		return errStays
	}
}
