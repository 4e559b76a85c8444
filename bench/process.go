package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/internal/testing/child"
)

// childSettings are what a child runs: relays of ours on each of the URLs, a River client, or a raw
// listener.
type childSettings struct {
	URLs   []string
	Relays int // on each URL
	Set    relaySettings
	River  *river.Settings
	Raw    bool
}

// runIfChild runs a child and ends the process, if this process is one.
func runIfChild() { child.Run(runChild) }

// saying is a line by which a child tells its parent a value.
const saying = "bench: child: %s = %d\n"

// runChild runs what the settings say until ctx ends. It says when it is ready, when the first
// handler of each task starts, and after SIGUSR1 how much CPU time it has used.
func runChild(ctx context.Context, set childSettings) (failed error) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	var seen sync.Map
	begun := func(n int) {
		now := time.Now().UnixNano()
		if n >= firstOfMany { // nobody asks when one of many starts
			return
		}
		if _, again := seen.LoadOrStore(n, true); !again {
			fmt.Printf(saying, startOf(n), now)
		}
	}
	var stops []func() error
	add := func(stop func() error, err error) {
		if failed = errors.Join(failed, err); err == nil {
			stops = append(stops, stop)
		}
	}
	running := context.WithoutCancel(ctx) // until its stop
	for _, url := range set.URLs {
		for range set.Relays {
			add(startRelay(running, url, set.Set, func(_ int, first load) { begun(first.N) }))
		}
		if set.River != nil {
			work := *set.River
			work.Handle = func(a river.Args) {
				begun(a.N)
				pause(running, set.Set.Pause)
			}
			add(river.Start(running, url, work, nil))
		}
		if set.Raw {
			add(raw.Listen(running, url, taskType, func(payload string) {
				var l load
				if json.Unmarshal([]byte(payload), &l) == nil {
					begun(l.N)
				}
			}))
		}
	}
	if failed == nil {
		fmt.Printf(saying, "ready", 0)
	}
	for failed == nil && ctx.Err() == nil {
		select {
		case <-asked:
			fmt.Printf(saying, "cpu", cpuTime())
		case <-ctx.Done():
		}
	}
	for _, stop := range stops {
		failed = errors.Join(failed, stop())
	}
	return failed
}

func startOf(n int) string { return fmt.Sprint("start-", n) }

// process is a child, as its parent sees it.
type process struct {
	*child.Process
	mu     sync.Mutex
	values map[string]chan int64 // that it said, by name
}

// startProcess starts a child and waits until its relays run.
func startProcess(ctx context.Context, set childSettings) (*process, error) {
	lines, output := io.Pipe()
	started, err := child.Start(set, output)
	if err != nil {
		return nil, err
	}
	p := &process{Process: started, values: map[string]chan int64{}}
	go func() {
		<-p.Ended
		_ = output.Close()
	}()
	go p.listen(lines)
	if _, err := p.value(ctx, "ready"); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// listen keeps the values that a child says, and hands on all else.
func (p *process) listen(lines io.Reader) {
	for in := bufio.NewScanner(lines); in.Scan(); {
		var name string
		var value int64
		if _, err := fmt.Sscanf(in.Text()+"\n", saying, &name, &value); err != nil {
			fmt.Fprintln(os.Stderr, in.Text())
			continue
		}
		p.named(name) <- value
	}
}

func (p *process) named(name string) chan int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.values[name] == nil {
		p.values[name] = make(chan int64, 1)
	}
	return p.values[name]
}

// value waits until the child says a value.
func (p *process) value(ctx context.Context, name string) (int64, error) {
	const within = 20 * time.Second
	select {
	case v := <-p.named(name):
		return v, nil
	case <-p.Ended:
		return 0, fmt.Errorf("bench: a relay's process ended before its %s: %w", name, p.Err)
	case <-time.After(within):
		return 0, fmt.Errorf("bench: %s of a relay's process takes longer than %s", name, within)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// started waits for the start of the handler of task n, in Unix nanoseconds.
func (p *process) started(ctx context.Context, n int) (int64, error) {
	return p.value(ctx, startOf(n))
}

// cpu asks the child how much CPU time it has used so far.
func (p *process) cpu(ctx context.Context) (time.Duration, error) {
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		return 0, err
	}
	used, err := p.value(ctx, "cpu")
	return time.Duration(used), err
}
