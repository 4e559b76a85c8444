package outbox_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// From here to relayTasks it is the README's example.
type Welcome struct{ UserID int64 }

var SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")

func signUp(ctx context.Context, tx *sql.Tx, email string) error { // in your own transaction, or outbox.InTx
	var w Welcome
	err := tx.QueryRowContext(ctx, `INSERT INTO usr (email) VALUES ($1) RETURNING usr_id`, email).Scan(&w.UserID)
	if err != nil {
		return err
	}
	_, err = SendWelcome.Enqueue(ctx, tx, w)
	return err
}

func relayTasks(ctx context.Context, db *sql.DB) error { // until ctx ends; in this process or another
	reg := handlers.New()
	handlers.Leased(reg, SendWelcome, func(ctx context.Context, task *outbox.Task[Welcome]) error {
		return sendMail(ctx, task.Payload.UserID, task.Key()) // the idempotency key
	})
	r, err := relay.New(db, reg, relay.Config{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func serveSignUp(ctx context.Context, db *sql.DB, email string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return signUp(ctx, tx, email) })
}

var sentMail = make(chan int64, 1)

func sendMail(_ context.Context, userID int64, _ string) error {
	sentMail <- userID
	return nil
}

func TestTheExampleOfTheREADMEWorks(t *testing.T) {
	t.Parallel()
	db := testDB(t)
	ctx, stop := context.WithCancel(t.Context())
	relayed := make(chan error, 1)
	go func() { relayed <- relayTasks(ctx, db) }()
	if err := serveSignUp(ctx, db, "ada@example.com"); err != nil {
		t.Error(err)
	}
	select {
	case id := <-sentMail:
		if id != 1 {
			t.Errorf("mail for user %d, want 1", id)
		}
	case <-time.After(time.Minute):
		t.Error("no mail within a minute")
	}
	stop()
	if err := <-relayed; err != nil {
		t.Errorf("Run: %v", err)
	}
}
