package p

import "github.com/txoutbox/outbox"

type Change struct{}

var (
	SendChange = outbox.NewTaskType[Change]("SEND_CHANGE")
	change     Change
	accountID  string
)
