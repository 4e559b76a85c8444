package main

import (
	"context"
	"sync"

	"github.com/txoutbox/outbox/relay"
)

// claims are those of a relay that have taken tasks.
type claims struct {
	mu  sync.Mutex
	all []relay.Claim
}

func (c *claims) add(_ context.Context, one relay.Claim) {
	if one.Tasks == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, one)
}

// take returns the claims since the last call.
func (c *claims) take() []relay.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}
