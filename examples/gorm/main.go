// Gorm adds the outbox to an app on gorm: tasks are enqueued on gorm's transaction, and handlers
// use gorm on the relay's.
//
//	go run ./examples/gorm
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

// sqlTx is the transaction that tx is on. It is an error where there is none: a task that is
// enqueued on a pool does not commit with the rows. With gorm.Config.PrepareStmt gorm wraps both: a
// *gorm.PreparedStmtTX has the transaction in it, and a *gorm.PreparedStmtDB is a pool that Enqueue
// would not know for one. So take what is inside, and nothing else.
func sqlTx(tx *gorm.DB) (*sql.Tx, error) {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx
	}
	if t, ok := pool.(*sql.Tx); ok {
		return t, nil
	}
	return nil, fmt.Errorf("enqueue: gorm is on a %T, not in a transaction", pool)
}

// onTx is db on a transaction that was begun elsewhere: that of a Tx handler, or of task.Complete.
// Its writes are part of the transaction.
func onTx(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	s := db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	s.Statement.ConnPool = tx // as gorm's own Begin does
	return s
}

type order struct {
	ID    int64 `gorm:"primaryKey"`
	Email string
	Cents int64
}

type turnover struct {
	OrderID, Cents int64
}

type receipt struct{ OrderID int64 }

var (
	sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")
	addTurnover = outbox.NewTaskType[receipt]("ADD_TURNOVER")
)

func placeOrder(ctx context.Context, db *gorm.DB, email string, cents int64) (int64, error) {
	o := order{Email: email, Cents: cents}
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&o).Error; err != nil {
			return err
		}
		t, err := sqlTx(tx)
		if err != nil {
			return err
		}
		_, err = sendReceipt.Enqueue(ctx, t, receipt{o.ID})
		return err
	})
	outbox.Wake() // a relay in this process need not wait for its poll
	return o.ID, err
}

// AfterCreate is a hook of gorm's. It runs in the transaction of the Create, also where gorm began
// that by itself.
func (o *order) AfterCreate(tx *gorm.DB) error {
	t, err := sqlTx(tx)
	if err != nil {
		return err
	}
	_, err = addTurnover.Enqueue(tx.Statement.Context, t, receipt{o.ID})
	return err
}

func registry(db *gorm.DB, out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[receipt]) error {
		var o order
		if err := db.WithContext(ctx).First(&o, task.Payload.OrderID).Error; err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "mail to %s: your order %d over %d cents\n", o.Email, o.ID, o.Cents)
		return err
	})
	handlers.Tx(reg, addTurnover, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[receipt]) error {
		db := onTx(ctx, db, tx)
		var o order
		if err := db.First(&o, task.Payload.OrderID).Error; err != nil {
			return err
		}
		return db.Create(&turnover{OrderID: o.ID, Cents: o.Cents}).Error
	})
	return reg
}

func run(ctx context.Context, url string, config *gorm.Config, out io.Writer) error {
	pool, err := devdb.Open(ctx, url, "")
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), config)
	if err != nil {
		return err
	}
	if err := db.AutoMigrate(&order{}, &turnover{}); err != nil {
		return err
	}
	id, err := placeOrder(ctx, db, "ada@example.com", 1999)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "order %d is placed\n", id)
	r, err := relay.New(pool, registry(db, out), relay.Config{})
	if err != nil {
		return err
	}
	return r.RunOnce(ctx) // a server calls r.Start and r.Stop: see examples/nethttp
}

func main() {
	devdb.Main(func(ctx context.Context, url string, out io.Writer) error { return run(ctx, url, &gorm.Config{}, out) })
}
