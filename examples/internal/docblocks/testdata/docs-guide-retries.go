package p

import (
	"context"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

var client *admin.Client

func send(ctx context.Context, task *outbox.Task[Welcome]) error { return nil }
