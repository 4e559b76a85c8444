package inspect_test

import (
	"context"
	"database/sql"
	"os"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

type database = relaytest.Database

// onEachDriver runs a test through lib/pq and pgx, or the driver that OUTBOX_TEST_DRIVER names.
func onEachDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	drivers := []string{"postgres", "pgx"}
	if os.Getenv("OUTBOX_TEST_DRIVER") != "" {
		drivers = []string{relaytest.DriverName()}
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { test(t, relaytest.NewDatabase(t, driver)) })
	}
}

// newSchema is a pool with an outbox in a schema of another name.
func newSchema(t *testing.T, name string) *sql.DB {
	t.Helper()
	db := relaytest.Open(t, pgtest.Database(t))
	if err := schema.Migrate(t.Context(), db.DB, schema.Schema(name)); err != nil {
		t.Fatal(err)
	}
	return db.DB
}

func enqueue(t *testing.T, db *database, taskType string, payload any, opts ...outbox.Option) int64 {
	t.Helper()
	var id int64
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		got, err := outbox.Enqueue(context.WithoutCancel(t.Context()), tx, taskType, payload, opts...)
		id = got.TaskID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
