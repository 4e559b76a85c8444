package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// I12: what drivers say of a connection string that they cannot parse repeats it. No error of ours does.
func TestNoErrorRepeatsTheConnectionString(t *testing.T) {
	t.Parallel()
	const relayID = "00000000-0000-0000-0000-000000000001"
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[int]("T"), func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
	calls := map[string]func(ctx context.Context, db *sql.DB) error{
		"InTx": func(ctx context.Context, db *sql.DB) error {
			return outbox.InTx(ctx, db, func(*sql.Tx) error { return nil })
		},
		"SqlxInTx": func(ctx context.Context, db *sql.DB) error {
			return outbox.SqlxInTx(ctx, sqlx.NewDb(db, "postgres"), func(*sqlx.Tx) error { return nil })
		},
		"Stats":      func(ctx context.Context, db *sql.DB) error { _, err := outbox.Stats(ctx, db); return err },
		"Check":      func(ctx context.Context, db *sql.DB) error { return schema.Check(ctx, db, "outbox") },
		"Migrate":    func(ctx context.Context, db *sql.DB) error { return schema.Migrate(ctx, db) },
		"GrantRoles": func(ctx context.Context, db *sql.DB) error { return schema.GrantRoles(ctx, db) },
		"RunOnce": func(ctx context.Context, db *sql.DB) error {
			r, err := relay.New(db, reg, relay.Config{})
			if err != nil {
				return err
			}
			return r.RunOnce(ctx)
		},
		"New with a bad ListenDSN": func(ctx context.Context, db *sql.DB) error {
			_, err := relay.New(db, reg, relay.Config{ListenDSN: "password=a C4n4ry"})
			return err
		},
	}
	for name, do := range map[string]func(ctx context.Context, c *admin.Client) error{
		"PauseType":      func(ctx context.Context, c *admin.Client) error { return c.PauseType(ctx, "T") },
		"PauseSchedule":  func(ctx context.Context, c *admin.Client) error { return c.PauseSchedule(ctx, "s") },
		"RemoveSchedule": func(ctx context.Context, c *admin.Client) error { return c.RemoveSchedule(ctx, "s") },
		"Task":           func(ctx context.Context, c *admin.Client) error { _, err := c.Task(ctx, 1); return err },
		"Tasks": func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.Tasks(ctx, "T", admin.Ready, admin.Page{})
			return err
		},
		"Secrets": func(ctx context.Context, c *admin.Client) error { _, err := c.Secrets(ctx, 1); return err },
		"DeadLetters": func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.DeadLetters(ctx, admin.Filter{Error: "x"}, admin.Page{Look: 1})
			return err
		},
		"CountDeadLetters": func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.CountDeadLetters(ctx, admin.Filter{}, admin.Page{})
			return err
		},
		"Redrive": func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.Redrive(ctx, admin.Filter{All: true}, admin.Page{})
			return err
		},
		"EveryPage": func(ctx context.Context, c *admin.Client) error {
			_, err := c.EveryPage(ctx, c.Purge, admin.Filter{All: true}, 0)
			return err
		},
		"Cancel":    func(ctx context.Context, c *admin.Client) error { _, _, err := c.Cancel(ctx, 1); return err },
		"RunNow":    func(ctx context.Context, c *admin.Client) error { _, err := c.RunNow(ctx, 1); return err },
		"Types":     func(ctx context.Context, c *admin.Client) error { _, err := c.Types(ctx); return err },
		"Relays":    func(ctx context.Context, c *admin.Client) error { _, err := c.Relays(ctx); return err },
		"Schedules": func(ctx context.Context, c *admin.Client) error { _, err := c.Schedules(ctx); return err },
		"Samples":   func(ctx context.Context, c *admin.Client) error { _, err := c.Samples(ctx, "", time.Hour); return err },
		"Audit":     func(ctx context.Context, c *admin.Client) error { _, _, err := c.Audit(ctx, admin.Page{}); return err },
		"HandBack":  func(ctx context.Context, c *admin.Client) error { _, err := c.HandBack(ctx, relayID); return err },
		"Reindex":   func(ctx context.Context, c *admin.Client) error { _, err := c.Reindex(ctx); return err },
	} {
		calls[name] = func(ctx context.Context, db *sql.DB) error {
			client, err := admin.New(db, admin.Options{Actor: "ada", Tool: "test"})
			if err != nil {
				return nil // which is an error here
			}
			return do(ctx, client)
		}
	}
	for _, driver := range []string{"postgres", "pgx"} {
		for _, dsn := range []string{"postgres://app:C4n4ry@%zz/x", "host=127.0.0.1 port=1 password=a C4n4ry", "host=127.0.0.1 port=C4n4ry"} {
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for name, call := range calls {
				if err := call(t.Context(), db); err == nil || strings.Contains(err.Error(), "C4n4ry") {
					t.Errorf("%s on %s: got %v", name, driver, err)
				}
			}
		}
	}
}
