package repotest

import (
	"context"
	"database/sql"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// adminCalls are calls of all methods of a client that reach the database.
func adminCalls() map[string]func(ctx context.Context, db *sql.DB) error {
	calls := map[string]func(ctx context.Context, db *sql.DB) error{}
	of := reflect.TypeFor[*admin.Client]()
	for i := range of.NumMethod() {
		method := of.Method(i)
		if method.Name == "In" {
			continue
		}
		calls[method.Name] = func(ctx context.Context, db *sql.DB) error {
			c, err := admin.New(db, admin.Config{Actor: "ada", Tool: "test"})
			if err != nil {
				return nil // which is an error here
			}
			values := []any{c, ctx, "00000000-0000-8000-8000-000000000001", int64(1), admin.Filter{Error: "x"}, admin.Bulk{},
				admin.TaskQuery{Filter: admin.Filter{Type: "A", State: admin.StateRetrying}},
				admin.SampleQuery{}, admin.AuditQuery{},
				7, time.Now(), admin.AuditEntry{Action: "test", Target: "test"}, admin.RepairOptions{}, admin.AdoptOptions{},
				admin.Schedule{Name: "x", Type: "A", Spec: "1h"}, admin.TailFilter{}, tells}
			var args []reflect.Value
			for j := range method.Type.NumIn() {
				in := method.Type.In(j)
				if in == reflect.TypeFor[[]int64]() {
					args = append(args, reflect.ValueOf([]int64{1}))
					continue
				}
				at := slices.IndexFunc(values, func(v any) bool { return reflect.TypeOf(v).AssignableTo(in) })
				args = append(args, reflect.ValueOf(values[at]))
			}
			results := method.Func.Call(args)
			err, _ = results[len(results)-1].Interface().(error)
			return err
		}
	}
	return calls
}

func tells(admin.TailEvent) error { return nil }

// I12: what drivers say of a connection string that they cannot parse repeats it. No error of ours
// does.
func TestNoErrorRepeatsTheConnectionString(t *testing.T) {
	t.Parallel()
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[int]("T"),
		func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
	calls := map[string]func(ctx context.Context, db *sql.DB) error{
		"InTx": func(ctx context.Context, db *sql.DB) error {
			return outbox.InTx(ctx, db, func(*sql.Tx) error { return nil })
		},
		"SqlxInTx": func(ctx context.Context, db *sql.DB) error {
			return outbox.SqlxInTx(ctx, sqlx.NewDb(db, "postgres"), func(*sqlx.Tx) error { return nil })
		},
		"Stats":      func(ctx context.Context, db *sql.DB) error { _, err := outbox.Stats(ctx, db); return err },
		"Check":      func(ctx context.Context, db *sql.DB) error { return schema.Check(ctx, db) },
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
	for _, dsn := range []string{"postgres://app:C4n4ry@%zz/x", "password=a C4n4ry", "host=127.0.0.1 port=C4n4ry"} {
		calls["Tail of "+dsn] = func(ctx context.Context, db *sql.DB) error {
			c, err := admin.New(db, admin.Config{})
			if err != nil {
				return err
			}
			return c.Tail(ctx, dsn, admin.TailFilter{}, tells)
		}
	}
	maps.Copy(calls, adminCalls())
	for _, driver := range []string{"postgres", "pgx"} {
		for _, dsn := range []string{"postgres://app:C4n4ry@%zz/x", "host=127.0.0.1 port=1 password=a C4n4ry",
			"host=127.0.0.1 port=C4n4ry"} {
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
