package p

import (
	"context"

	"github.com/txoutbox/outbox"
)

func send(ctx context.Context, task *outbox.Task[Welcome]) error { return nil }
