package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/enqueuetest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestTheOrderAndItsTasksCommitTogether(t *testing.T) {
	for name, config := range map[string]*gorm.Config{"plain": {}, "PrepareStmt": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			var out bytes.Buffer
			relaytest.Must(run(t.Context(), url, config, &out))
			const want = "order 1 is placed\nmail to ada@example.com: your order 1 over 1999 cents\n"
			if got := out.String(); got != want {
				t.Errorf("it printed %q, want %q", got, want)
			}
			pool, err := devdb.Open(t.Context(), url, "")
			relaytest.Must(err)
			defer pool.Close()
			db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), config)
			relaytest.Must(err)
			tasks := func(want int) {
				t.Helper()
				var got int
				if err := db.Raw(`SELECT count(*) FROM outbox.task`).Scan(&got).Error; err != nil || got != want {
					t.Errorf("%d tasks, want %d: %v", got, want, err)
				}
			}
			tasks(0)

			errNo := errors.New("no")
			err = db.Transaction(func(tx *gorm.DB) error {
				// A transaction in a transaction is a savepoint, and on the same *sql.Tx.
				return errors.Join(errNo, tx.Transaction(func(tx *gorm.DB) error {
					return tx.Create(&order{Email: "eve@example.com"}).Error
				}))
			})
			if err == nil || err.Error() != errNo.Error() {
				t.Errorf("Transaction: %v", err)
			}
			tasks(0)
			// the transaction is gorm's own; the hook enqueues
			relaytest.Must(db.Create(&order{Email: "ada@example.com"}).Error)
			tasks(1)
			if _, err := sqlTx(db); err == nil {
				t.Error("a pool was taken for a transaction")
			}

			// gorm's writes on a handler's transaction are part of it.
			tx, err := pool.BeginTx(t.Context(), nil)
			relaytest.Must(err)
			s := onTx(t.Context(), db, tx)
			err = errors.Join(s.Create(&turnover{OrderID: 2}).Error,
				s.Transaction(func(tx *gorm.DB) error { return tx.Create(&turnover{OrderID: 3}).Error }), tx.Rollback())
			relaytest.Must(err)
			relaytest.Must(db.Create(&turnover{OrderID: 4}).Error) // db itself is as it was
			var kept []int64
			if err := db.Model(&turnover{}).Order("order_id").Pluck("order_id", &kept).Error; err != nil ||
				!slices.Equal(kept, []int64{1, 4}) {
				t.Errorf("the turnover of orders %v was kept, %v; want 1 and 4", kept, err)
			}
		})
	}
}

func TestGormsTransactionsEnqueueTheRowsOfASqlTx(t *testing.T) {
	url := relaytest.Migrated(t)
	client := func(name string, config *gorm.Config) enqueuetest.Client {
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: relaytest.Open(t, url, "pgx").DB}), config)
		relaytest.Must(err)
		return enqueuetest.Client{Name: name,
			Begin: func(ctx context.Context) (enqueuetest.Tx, error) {
				of := db.WithContext(context.WithoutCancel(ctx)).Begin()
				tx, err := sqlTx(of)
				return enqueuetest.Tx{Querier: tx, Commit: func() error { return of.Commit().Error },
					Rollback: func() error { return of.Rollback().Error }}, err
			}}
	}
	enqueuetest.Run(t, url, client("gorm", &gorm.Config{}), client("gorm_PrepareStmt", &gorm.Config{PrepareStmt: true}))
}
