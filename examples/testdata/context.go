// Package context has the names that Go blocks of the documentation use without declaring them. Its
// imports, and the modules in adapter/, publish/ and telemetry/, are those of a block without imports of its own.
package context

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/robfig/cron/v3"
	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// An app's infrastructure.
var (
	ctx     context.Context
	limit   context.Context
	db      *sql.DB
	dbx     *sqlx.DB
	tx      *sql.Tx
	pgxPool *pgxpool.Pool
	dsn     string
	err     error
	logger  *slog.Logger
	mux     *http.ServeMux
	server  *http.Server
	host    string
	csrf    interface{ Token(*http.Request) string } // package gorilla/csrf
	t       *testing.T
)

// Its outbox.
var (
	reg    *handlers.Registry
	r      *relay.Relay
	client *admin.Client

	config    relay.Config
	schedules []relay.Schedule
	newYork   *time.Location
)

// Where events go.
var (
	response           *http.Response
	kafka, webhooks    forward.Publisher
	watermillPublisher message.Publisher
	event              struct{ Source, ID string }
)

func secretsOf(ctx context.Context, e *forward.Event) ([]string, error) { return nil, nil }

func endpointOf(ctx context.Context, e *forward.Event) (string, error) { return "", nil }

func createInvoice(ctx context.Context, tx *sql.Tx, event any) error { return nil }

// Its data.
var (
	taskID, userID   int64
	email, accountID string
	endpoint         string
	tomorrow         time.Time
	welcome          Welcome
	change           Change
	errNoSuchAddress error
)

// Its tasks.
type (
	Welcome struct{ UserID int64 }
	Grant   struct{ UserID, Cents int64 }
	Visit   struct{ Page string }
	Charge  struct{ ID int64 }
	Call    struct {
		URL  string
		Body []byte
	}
	Report struct{}
	Code   struct{ UserID int64 }
	Cart   struct{ ID int64 }
	Cursor struct{ Done bool }
	Change struct{}
	Import struct{ Rows int }
	Page   struct{ URL string }

	Rendered struct{ Bytes int }
)

var (
	SendWelcome  = outbox.NewTaskType[Welcome]("SEND_WELCOME")
	GrantCredit  = outbox.NewTaskType[Grant]("GRANT_CREDIT")
	CountVisit   = outbox.NewTaskType[Visit]("COUNT_VISIT")
	ChargeCard   = outbox.NewTaskType[Charge]("CHARGE_CARD")
	CallWebhook  = outbox.NewTaskType[Call]("CALL_WEBHOOK")
	SendReport   = outbox.NewTaskType[Report]("SEND_REPORT")
	SendCode     = outbox.NewTaskType[Code]("SEND_CODE")
	Remind       = outbox.NewTaskType[Cart]("REMIND")
	CleanUp      = outbox.NewTaskType[struct{}]("CLEAN_UP")
	ImportPage   = outbox.NewTaskType[Cursor]("IMPORT_PAGE")
	SendChange   = outbox.NewTaskType[Change]("SEND_CHANGE")
	CallProvider = outbox.NewTaskType[string]("CALL_PROVIDER")
	CallEndpoint = outbox.NewTaskType[string]("CALL_ENDPOINT")
)

// Its functions.

func sendMail(ctx context.Context, userID int64, key string) error { return nil }

func sendWelcome(ctx context.Context, email string) error { return nil }

func sendWelcomeWithKey(ctx context.Context, email, key string) error { return nil }

func send(ctx context.Context, task *outbox.Task[Welcome]) error { return nil }

func sendCode(ctx context.Context, task *outbox.Task[Code]) error { return nil }

func charge(ctx context.Context, c Charge, key string) (receipt string, err error) { return "", nil }

func call(ctx context.Context, task *outbox.Task[string]) error { return nil }

func importFrom(ctx context.Context, tx *sql.Tx, c Cursor) (Cursor, error) { return c, nil }

func signUp(ctx context.Context, tx *sql.Tx, email string) error { return nil }

func routes(db *sqlx.DB) http.Handler { return nil }

func iamToken(ctx context.Context) (string, error) { return "", nil }

func report(taskType string, taskID int64, value any, stack []byte) {}

func authorize(r *http.Request) dashboard.User { return dashboard.User{} }

func userOf(r *http.Request) user { return user{} }

type user struct {
	Email          string
	Admin, Support bool
}

// Its tests' functions.

func testDB(t *testing.T) *sql.DB { return nil }

func registry(send func(userID int64) error) *handlers.Registry { return nil }
