//go:build unix

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/txoutbox/outbox/pgdb"
)

// childEnv in the environment makes this program a relay or a producer, as its value, a childConfig, says.
const childEnv = "OUTBOX_CHAOS_CHILD"

type childConfig struct {
	Role   string // relay or producer
	Name   string
	URL    string
	Driver string
	Sink   string
	Dir    string // of ledgers
	Seed   uint64
	Tasks  int   // of a producer; 0 is no limit
	Dawdle int64 // one in so many leased tasks takes its time; 0: none
}

// child is the whole life of such a process.
func child(config string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent is gone
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := c.open()
	if err != nil {
		return err
	}
	if c.Role == "producer" {
		err = produce(ctx, c, db)
	} else {
		err = relays(ctx, c, db)
	}
	if err == nil {
		os.Exit(0)
	}
	return err
}

func (c childConfig) open() (*sql.DB, error) {
	c.URL += "&application_name=" + strconv.Itoa(os.Getpid())
	if c.Driver == "pgx" {
		return sql.Open("pgx", c.URL)
	}
	return pgdb.Open(c.URL)
}

// process is a child.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	began time.Time
	ended chan struct{} // closed when it has ended
	err   error         // then

	mu      sync.Mutex
	stopped bool // by SIGSTOP
}

func start(c childConfig, log string) (*process, error) {
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p := &process{cmd: exec.Command(self), began: time.Now(), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	p.cmd.Stdout, p.cmd.Stderr = output, output
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		_ = p.stdin.Close()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// freeze stops the process until thaw.
func (p *process) freeze() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		p.stopped = false
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
}

const young = 2 * time.Second

var errStays = errors.New("it did not end after SIGTERM")

// terminate asks the process to end, and kills it if it has not within d.
func (p *process) terminate(d time.Duration) error {
	p.thaw()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		if p.err != nil && time.Since(p.began) > young { // before that it does not know of SIGTERM yet
			return fmt.Errorf("it ended with: %w", p.err)
		}
		return nil
	case <-time.After(d):
		p.kill()
		<-p.ended
		return errStays
	}
}
