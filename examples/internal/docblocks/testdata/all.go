// What blocks of the documentation use without declaring it.
package p

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

var (
	ctx    context.Context
	db     *sql.DB
	dbx    *sqlx.DB
	tx     *sql.Tx
	reg    *handlers.Registry
	t      *testing.T
	dsn    string
	err    error
	logger *slog.Logger
	mux    *http.ServeMux

	taskID, userID int64
	tomorrow       time.Time
	email          string
)

type Welcome struct{ UserID int64 }

var welcome Welcome

var SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")

func sendMail(ctx context.Context, userID, key int64) error { return nil }
