package main

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestTheOrderAndItsTasksCommitTogether(t *testing.T) {
	for name, config := range map[string]*gorm.Config{"plain": {}, "PrepareStmt": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			var out bytes.Buffer
			if err := run(t.Context(), url, config, &out); err != nil {
				t.Fatal(err)
			}
			if got, want := out.String(), "order 1 is placed\nmail to ada@example.com: your order 1 over 1999 cents\n"; got != want {
				t.Errorf("it printed %q, want %q", got, want)
			}
			db := open(t, url, config)
			var turnover, tasks int64
			if err := db.Raw(`SELECT (SELECT sum(cents) FROM turnovers), (SELECT count(*) FROM outbox.task)`).Row().Scan(&turnover, &tasks); err != nil {
				t.Fatal(err)
			}
			if turnover != 1999 || tasks != 0 {
				t.Errorf("the turnover is %d and %d tasks are left, want 1999 and none", turnover, tasks)
			}
		})
	}
}

func TestARollbackTakesTheTasksAlong(t *testing.T) {
	for name, config := range map[string]*gorm.Config{"plain": {}, "PrepareStmt": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			db := open(t, pgtest.Database(t), config)
			pool, err := db.DB()
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Migrate(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			if err := db.AutoMigrate(&order{}); err != nil {
				t.Fatal(err)
			}
			errNo := errors.New("no")
			err = db.Transaction(func(tx *gorm.DB) error {
				// A transaction in a transaction is a savepoint, and on the same *sql.Tx.
				if err := tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&order{Email: "eve@example.com"}).Error }); err != nil {
					t.Error(err)
				}
				return errNo
			})
			if !errors.Is(err, errNo) {
				t.Errorf("Transaction: %v", err)
			}
			if err := db.Create(&order{Email: "ada@example.com"}).Error; err != nil { // the transaction is gorm's own; the hook enqueues
				t.Fatal(err)
			}
			var tasks int64
			if err := db.Raw(`SELECT count(*) FROM outbox.task`).Scan(&tasks).Error; err != nil {
				t.Fatal(err)
			}
			if tasks != 1 {
				t.Errorf("%d tasks, want that of the order that was kept", tasks)
			}
			if _, err := sqlTx(db); err == nil {
				t.Error("a pool was taken for a transaction")
			}
		})
	}
}

func TestWhatGormDoesOnAHandlersTransactionIsPartOfIt(t *testing.T) {
	for name, config := range map[string]*gorm.Config{"plain": {}, "PrepareStmt": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			db := open(t, pgtest.Database(t), config)
			if err := db.AutoMigrate(&turnover{}); err != nil {
				t.Fatal(err)
			}
			pool, err := db.DB()
			if err != nil {
				t.Fatal(err)
			}
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			s := onTx(t.Context(), db, tx)
			err = errors.Join(s.Create(&turnover{OrderID: 1}).Error,
				s.Transaction(func(tx *gorm.DB) error { return tx.Create(&turnover{OrderID: 2}).Error }), tx.Rollback())
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Create(&turnover{OrderID: 3}).Error; err != nil { // db itself is as it was
				t.Fatal(err)
			}
			var kept []int64
			if err := db.Model(&turnover{}).Pluck("order_id", &kept).Error; err != nil || !slices.Equal(kept, []int64{3}) {
				t.Errorf("the orders %v were kept, %v; want 3", kept, err)
			}
		})
	}
}

func open(t *testing.T, url string, config *gorm.Config) *gorm.DB {
	t.Helper()
	pool, err := pgdb.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), config)
	if err != nil {
		t.Fatal(err)
	}
	return db
}
