package p

import (
	"github.com/jmoiron/sqlx"
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
	AddTurnover = outbox.NewTaskType[Receipt]("ADD_TURNOVER")

	gdb *gorm.DB
	bdb *bun.DB
)
