package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/outboxtest"
)

// The first block of docs/guide/testing.md, and what it needs.
func TestSignUp(t *testing.T) {
	tx, err := testDB(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()

	if err := signUp(t.Context(), tx, "ada@example.com"); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireEnqueuedN(t, tx, 1, SendWelcome, nil)

	mails := 0
	reg := registry(func(userID int64) error { mails++; return nil })
	if err := outboxtest.Drain(t, tx, reg).Err(); err != nil || mails != 1 {
		t.Errorf("%d mails, want 1: %v", mails, err)
	}
	outboxtest.RequireNotEnqueued(t, tx, SendWelcome, nil)
}

func registry(send func(userID int64) error) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, SendWelcome, func(_ context.Context,
		task *outbox.Task[Welcome]) error {
		return send(task.Payload.UserID)
	})
	return reg
}

func testDB(t *testing.T) *sql.DB {
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE usr (usr_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL)`)
	return d.db
}
