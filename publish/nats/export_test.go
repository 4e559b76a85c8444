package outboxnats

import (
	"context"

	"github.com/txoutbox/outbox/forward"
)

// Classify is what an error of the client means for an event.
func Classify(ctx context.Context, p *Publisher, e *forward.Event, err error) error {
	return (&call{p: p, l: p.link}).classify(ctx, e, err)
}

// ConnectionErrors are those of the list.
var ConnectionErrors = connectionErrors
