package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

// child is what a parent calls in its child.
type child struct {
	stops []func() error

	mu     sync.Mutex
	starts map[int]chan int64 // of handlers, by the payload's number
}

// runIfChild runs a child and ends the process, if this process is one.
func runIfChild() {
	if len(os.Args) < 2 || os.Args[1] != childArgument {
		return
	}
	signal.Ignore(os.Interrupt) // a Ctrl-C reaches parent and children; the parent decides
	c := &child{starts: map[int]chan int64{}}
	err := rpc.RegisterName("Child", c)
	rpc.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	for _, stop := range c.stops {
		err = errors.Join(err, stop())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts what the settings say.
func (c *child) Start(set ChildSettings, _ *bool) error {
	ctx := context.Background()
	handle := func(_ int, first load) { c.begun(first.N) }
	add := func(stop func() error, err error) error {
		if err == nil {
			c.stops = append(c.stops, stop)
		}
		return err
	}
	for _, url := range set.URLs {
		for range set.Relays {
			if err := add(startRelay(ctx, url, set.Set, handle)); err != nil {
				return err
			}
		}
		if set.River != nil {
			work := *set.River
			work.Handle = func(a river.Args) {
				handle(1, load{N: a.N})
				pause(ctx, set.Set.Pause)
			}
			if err := add(river.Start(ctx, url, work, nil)); err != nil {
				return err
			}
		}
		if set.Raw {
			err := add(raw.Listen(ctx, url, taskType, func(payload string) {
				var l load
				if json.Unmarshal([]byte(payload), &l) == nil {
					c.begun(l.N)
				}
			}))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// begun notes the start of a handler, the first one of each number.
func (c *child) begun(n int) {
	select {
	case c.startOf(n) <- time.Now().UnixNano():
	default:
	}
}

func (c *child) startOf(n int) chan int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starts[n] == nil {
		c.starts[n] = make(chan int64, 1)
	}
	return c.starts[n]
}

// Started waits for the start of the handler of task n, in Unix nanoseconds.
func (c *child) Started(n int, at *int64) error {
	*at = <-c.startOf(n)
	return nil
}

// Used is what the process has used so far.
func (c *child) Used(_ bool, u *Usage) error {
	*u = usageNow()
	return nil
}
