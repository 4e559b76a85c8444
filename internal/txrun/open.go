package txrun

import (
	"context"
	"slices"
	"sync"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/store"
)

// openClaim is a claim of a Tx or Batch handler that has not ended.
type openClaim struct {
	rows   []*store.Row
	ctx    context.Context // of the handler; ends when the relay gives up waiting for handlers
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	canceled []int64 // tasks
	current  int64   // the task of a group that runs; 0: all run
}

// cancelTask ends the handler's context as one of its tasks was canceled.
func (c *openClaim) cancelTask(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.canceled, id) {
		c.canceled = append(c.canceled, id)
	}
	if c.current == 0 || c.current == id {
		c.cancel(outbox.ErrCanceled)
	}
}

// begin is the context of the handler for one task of a group, and whether the task is canceled.
func (c *openClaim) begin(handling context.Context, id int64) (ctx context.Context, end func(), canceled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = id
	c.cancel(nil)
	c.ctx, c.cancel = context.WithCancelCause(handling)
	cancel := c.cancel
	return c.ctx, func() { cancel(nil) }, slices.Contains(c.canceled, id)
}

// end ends the handler's context as it has returned.
func (c *openClaim) end() { c.mu.Lock(); defer c.mu.Unlock(); c.cancel(nil) }

func (c *openClaim) canceledIDs() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.canceled)
}

// openClaims are the open claims of a relay.
type openClaims struct {
	mu  sync.Mutex
	all map[*openClaim]struct{}
}

func newOpenClaims() *openClaims { return &openClaims{all: map[*openClaim]struct{}{}} }

func (o *openClaims) add(handling context.Context, rows []*store.Row) *openClaim {
	c := &openClaim{rows: rows}
	c.ctx, c.cancel = context.WithCancelCause(handling)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[c] = struct{}{}
	return c
}

func (o *openClaims) remove(c *openClaim) {
	c.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

func (o *openClaims) underway() map[string][]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string][]int64{}
	for c := range o.all {
		taskType := c.rows[0].TaskType
		out[taskType] = append(out[taskType], store.IDs(c.rows)...)
	}
	return out
}

func (o *openClaims) cancel(canceled map[int64]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		for _, t := range c.rows {
			if canceled[t.ID] {
				c.cancelTask(t.ID)
			}
		}
	}
}
