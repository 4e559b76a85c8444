package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/history"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// I12: what drivers say of a connection string that they cannot parse repeats it. No error of ours does.
func TestNoErrorRepeatsTheConnectionString(t *testing.T) {
	t.Parallel()
	const relayID = "00000000-0000-0000-0000-000000000001"
	calls := map[string]func(ctx context.Context, db *sql.DB) error{
		"InTx": func(ctx context.Context, db *sql.DB) error {
			return outbox.InTx(ctx, db, func(*sql.Tx) error { return nil })
		},
		"SqlxInTx": func(ctx context.Context, db *sql.DB) error {
			return outbox.SqlxInTx(ctx, sqlx.NewDb(db, "postgres"), func(*sqlx.Tx) error { return nil })
		},
		"Stats":          func(ctx context.Context, db *sql.DB) error { _, err := outbox.Stats(ctx, db); return err },
		"Pause":          func(ctx context.Context, db *sql.DB) error { return outbox.Pause(ctx, db, "T") },
		"deadletter.Get": func(ctx context.Context, db *sql.DB) error { _, err := deadletter.Get(ctx, db, 1); return err },
		"deadletter.Redrive": func(ctx context.Context, db *sql.DB) error {
			_, err := deadletter.Redrive(ctx, db, []int64{1})
			return err
		},
		"deadletter.List": func(ctx context.Context, db *sql.DB) error {
			_, err := deadletter.List(ctx, db, deadletter.Filter{}, deadletter.Cursor{}, 0)
			return err
		},
		"deadletter.ListPage": func(ctx context.Context, db *sql.DB) error {
			_, _, err := deadletter.ListPage(ctx, db, deadletter.Filter{Error: "x"}, deadletter.Cursor{}, 0, 0)
			return err
		},
		"deadletter.CountPage": func(ctx context.Context, db *sql.DB) error {
			_, err := deadletter.CountPage(ctx, db, deadletter.Filter{}, deadletter.Cursor{}, 0)
			return err
		},
		"deadletter.Count": func(ctx context.Context, db *sql.DB) error {
			_, err := deadletter.Count(ctx, db, deadletter.Filter{})
			return err
		},
		"deadletter.PurgeMany": func(ctx context.Context, db *sql.DB) error {
			_, err := deadletter.PurgeMany(ctx, db, deadletter.Filter{Type: "T"}, 0)
			return err
		},
		"history.Get":    func(ctx context.Context, db *sql.DB) error { _, err := history.Get(ctx, db, 1); return err },
		"history.List":   func(ctx context.Context, db *sql.DB) error { _, err := history.List(ctx, db, "", 0, 0); return err },
		"Check":          func(ctx context.Context, db *sql.DB) error { return schema.Check(ctx, db, "outbox") },
		"Migrate":        func(ctx context.Context, db *sql.DB) error { return schema.Migrate(ctx, db) },
		"GrantRoles":     func(ctx context.Context, db *sql.DB) error { return schema.GrantRoles(ctx, db) },
		"HandBack":       func(ctx context.Context, db *sql.DB) error { _, err := relay.HandBack(ctx, db, relayID); return err },
		"Reindex":        func(ctx context.Context, db *sql.DB) error { _, err := relay.Reindex(ctx, db, ""); return err },
		"PauseSchedule":  func(ctx context.Context, db *sql.DB) error { return relay.PauseSchedule(ctx, db, "s") },
		"RemoveSchedule": func(ctx context.Context, db *sql.DB) error { return relay.RemoveSchedule(ctx, db, "s") },
		"RunOnce": func(ctx context.Context, db *sql.DB) error {
			reg := handlers.New()
			handlers.Tx(reg, outbox.NewTaskType[int]("T"), func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
			r, err := relay.New(db, reg, relay.Config{})
			if err != nil {
				return err
			}
			return r.RunOnce(ctx)
		},
		"New with a bad ListenDSN": func(ctx context.Context, db *sql.DB) error {
			reg := handlers.New()
			handlers.Tx(reg, outbox.NewTaskType[int]("T"), func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
			_, err := relay.New(db, reg, relay.Config{ListenDSN: "password=a C4n4ry"})
			return err
		},
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
