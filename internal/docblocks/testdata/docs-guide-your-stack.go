package p

import (
	"github.com/txoutbox/outbox"
	"github.com/uptrace/bun"
	"gorm.io/gorm"
)

type (
	Receipt struct{ OrderID int64 }
	Order   struct {
		ID    int64
		Email string
	}
)

var (
	SendReceipt = outbox.NewTaskType[Receipt]("SEND_RECEIPT")

	gdb *gorm.DB
	bdb *bun.DB
)
