package p

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox"
)

type (
	Report struct{}
	Cursor struct{ Done bool }
	Change struct{}
)

var (
	SendReport   = outbox.NewTaskType[Report]("SEND_REPORT")
	CleanUp      = outbox.NewTaskType[struct{}]("CLEAN_UP")
	ImportPage   = outbox.NewTaskType[Cursor]("IMPORT_PAGE")
	SendChange   = outbox.NewTaskType[Change]("SEND_CHANGE")
	CallProvider = outbox.NewTaskType[string]("CALL_PROVIDER")

	change    Change
	accountID string
)

func importFrom(ctx context.Context, tx *sql.Tx, c Cursor) (Cursor, error) { return c, nil }

func call(ctx context.Context, task *outbox.Task[string]) error { return nil }
