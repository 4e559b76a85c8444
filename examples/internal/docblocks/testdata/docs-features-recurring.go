package p

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox"
)

type (
	Cursor struct{ Done bool }
	Report struct{}
	Usage  struct{}
)

var (
	ImportPage = outbox.NewTaskType[Cursor]("IMPORT_PAGE")
	SendReport = outbox.NewTaskType[Report]("SEND_REPORT")
	CountUsage = outbox.NewTaskType[Usage]("COUNT_USAGE")
)

func importFrom(ctx context.Context, tx *sql.Tx, c Cursor) (Cursor, error) { return c, nil }
