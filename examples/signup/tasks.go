package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// welcome is the payload of both tasks. It names the user and repeats nothing of the row: a task
// may run much later, and operators see payloads.
type welcome struct {
	UsrID int64 `json:"usr_id"`
}

var (
	grantWelcomeCredit = outbox.NewTaskType[welcome]("GRANT_WELCOME_CREDIT")
	sendEmailWelcome   = outbox.NewTaskType[welcome]("SEND_EMAIL_WELCOME")
)

const welcomeCredit = 500 // cents

const kept = 24 * time.Hour // finished tasks, for the dashboard

// newRegistry says which handler runs which task. mails is the URL of the mail service.
func newRegistry(db *sql.DB, mails string) *handlers.Registry {
	reg := handlers.New()
	reg.Use(handlers.Log(nil))
	handlers.Tx(reg, grantWelcomeCredit, grantCredit, handlers.Retention(kept))
	handlers.Leased(reg, sendEmailWelcome, func(ctx context.Context, task *outbox.Task[welcome]) error {
		return sendWelcome(ctx, db, mails, task)
	}, handlers.Timeout(time.Minute), handlers.Retention(kept))
	return reg
}

// grantCredit writes through the transaction that removes its task, so each task writes one row,
// once.
func grantCredit(ctx context.Context, tx *sql.Tx, task *outbox.Task[welcome]) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (usr_id, cents) VALUES ($1, $2)`, task.Payload.UsrID, welcomeCredit)
	return err
}

// sendWelcome talks to a mail service, so it is a Leased handler and holds no transaction meanwhile.
// It runs twice for a task if its process dies after the mail was accepted. The task's key goes
// with the mail, for the receiver to recognise the second one.
func sendWelcome(ctx context.Context, db *sql.DB, mails string, task *outbox.Task[welcome]) error {
	var email string
	err := db.QueryRowContext(ctx, `SELECT email FROM usr WHERE usr_id = $1`, task.Payload.UsrID).Scan(&email)
	if errors.Is(err, sql.ErrNoRows) {
		return handlers.Discard(fmt.Errorf("user %d is gone", task.Payload.UsrID))
	}
	if err != nil {
		return err
	}
	text := fmt.Sprintf("A credit of %d.%02d is yours.", welcomeCredit/100, welcomeCredit%100)
	err = sendMail(ctx, mails, email, "Welcome!", text, task.Key())
	if errors.Is(err, errRecipientRefused) { // however often it is sent: somebody has to do something
		return handlers.Dead(err)
	}
	return err
}
