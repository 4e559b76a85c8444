package p

import (
	"context"

	"github.com/txoutbox/outbox"
)

type Change struct{}

var (
	SendChange = outbox.NewTaskType[Change]("SEND_CHANGE")
	change     Change
	accountID  string

	CallProvider = outbox.NewTaskType[string]("CALL_PROVIDER")
)

func call(ctx context.Context, task *outbox.Task[string]) error { return nil }
