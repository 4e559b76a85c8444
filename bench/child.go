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
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/relay"
)

// child is what a parent calls in its child.
type child struct {
	done  atomic.Int64
	stops []func() error

	mu     sync.Mutex
	starts map[int]chan Start // of handlers, by the payload's number
	claim  relay.Claim        // the last one of ours that took a task
}

// runIfChild runs a child and ends the process, if this process is one.
func runIfChild() {
	if len(os.Args) < 2 || os.Args[1] != childArgument {
		return
	}
	signal.Ignore(os.Interrupt) // a Ctrl-C reaches parent and children; the parent decides
	c := &child{starts: map[int]chan Start{}}
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
	handle := func(n int, first load) {
		c.begun(first.N)
		c.done.Add(int64(n))
	}
	add := func(stop func() error, err error) error {
		if err == nil {
			c.stops = append(c.stops, stop)
		}
		return err
	}
	for _, url := range set.URLs {
		for range set.Relays {
			if err := add(startRelay(ctx, url, set.Set, handle, relay.Observer{Claimed: c.claimed})); err != nil {
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

// claimed notes a claim that took tasks.
func (c *child) claimed(claim relay.Claim) {
	if claim.Tasks > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.claim = claim
	}
}

// begun notes the start of a handler, the first one of each number.
func (c *child) begun(n int) {
	s := Start{At: time.Now().UnixNano()}
	starts, claim := c.startOf(n)
	if claim.Tasks > 0 {
		s.Claim, s.Claimed = claim.Start.UnixNano(), claim.Start.Add(claim.Duration).UnixNano()
	}
	select {
	case starts <- s:
	default:
	}
}

func (c *child) startOf(n int) (chan Start, relay.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starts[n] == nil {
		c.starts[n] = make(chan Start, 1)
	}
	return c.starts[n], c.claim
}

// Started waits for the start of the handler of task n.
func (c *child) Started(n int, at *Start) error {
	starts, _ := c.startOf(n)
	*at = <-starts
	return nil
}

// Used is what the process has used and done so far.
func (c *child) Used(_ bool, u *Used) error {
	*u = Used{usageNow(), c.done.Load()}
	return nil
}
