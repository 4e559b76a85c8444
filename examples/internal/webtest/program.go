package webtest

import (
	"bufio"
	"context"
	"io"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// Program is an example that runs in a goroutine of the test.
type Program struct {
	DB *relaytest.Database // its database

	t     *testing.T
	lines *bufio.Scanner
	stop  func()
	done  chan error
}

// Start starts run with a database of its own. Its context ends with Stop or the test.
func Start(t *testing.T, run func(ctx context.Context, url string, out io.Writer) error) *Program {
	t.Helper()
	url := pgtest.Database(t)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	read, write := io.Pipe()
	p := &Program{relaytest.Open(t, url), t, bufio.NewScanner(read), stop, make(chan error, 1)}
	go func() {
		p.done <- run(ctx, url, write)
		write.Close()
	}()
	return p
}

// Line is the next line that the program prints.
func (p *Program) Line() string {
	p.t.Helper()
	if !p.lines.Scan() {
		err := <-p.done
		p.done <- nil // for Stop
		p.t.Fatalf("it ended: %v", err)
	}
	return p.lines.Text()
}

// Stop ends the context of the program, and returns the lines that it still prints.
func (p *Program) Stop() (lines []string) {
	p.t.Helper()
	p.stop()
	for p.lines.Scan() {
		lines = append(lines, p.lines.Text())
	}
	if err := <-p.done; err != nil {
		p.t.Errorf("run: %v", err)
	}
	return lines
}
