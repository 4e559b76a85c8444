package p

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox"
)

type (
	Document struct{ ID int64 }
	Digest   struct{ UserID int64 }
	Report   struct{}
	Cursor   struct{ Done bool }
)

var (
	Reindex    = outbox.NewTaskType[Document]("REINDEX")
	SendDigest = outbox.NewTaskType[Digest]("SEND_DIGEST")
	SendReport = outbox.NewTaskType[Report]("SEND_REPORT")
	CleanUp    = outbox.NewTaskType[struct{}]("CLEAN_UP")
	ImportPage = outbox.NewTaskType[Cursor]("IMPORT_PAGE")
)

func importFrom(ctx context.Context, tx *sql.Tx, c Cursor) (Cursor, error) { return c, nil }
