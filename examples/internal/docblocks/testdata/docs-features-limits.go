package p

import (
	"context"

	"github.com/txoutbox/outbox"
)

var CallProvider = outbox.NewTaskType[string]("CALL_PROVIDER")

func call(ctx context.Context, task *outbox.Task[string]) error { return nil }
