package p

import (
	"context"
	"errors"

	"github.com/txoutbox/outbox"
)

type (
	Grant  struct{ UserID, Cents int64 }
	Visit  struct{ Page string }
	Charge struct{ ID int64 }
	Call   struct {
		URL  string
		Body []byte
	}
)

var (
	GrantCredit = outbox.NewTaskType[Grant]("GRANT_CREDIT")
	CountVisit  = outbox.NewTaskType[Visit]("COUNT_VISIT")
	ChargeCard  = outbox.NewTaskType[Charge]("CHARGE_CARD")
	CallWebhook = outbox.NewTaskType[Call]("CALL_WEBHOOK")

	errNoSuchAddress = errors.New("no such address")
)

func charge(ctx context.Context, c Charge, key int64) (receipt string, err error) { return "", nil }
