package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// welcome is the payload of both tasks. It names the user and repeats nothing of the row: a task may run
// much later, and payloads are for every operator to see.
type welcome struct {
	UsrID int64 `json:"usr_id"`
}

var (
	grantWelcomeCredit = outbox.NewTaskType[welcome]("GRANT_WELCOME_CREDIT")
	sendEmailWelcome   = outbox.NewTaskType[welcome]("SEND_EMAIL_WELCOME")
)

const welcomeCredit = 500 // cents

// newRegistry says which handler runs which task.
func newRegistry(db *sql.DB, m *mailer, logger *slog.Logger) *handlers.Registry {
	reg := handlers.New()
	reg.Use(handlers.Log(logger), handlers.Recover())
	handlers.Tx(reg, grantWelcomeCredit, grantCredit)
	handlers.Leased(reg, sendEmailWelcome, func(ctx context.Context, task *outbox.Task[welcome]) error {
		return sendWelcome(ctx, db, m, task)
	}, handlers.Timeout(time.Minute))
	return reg
}

// grantCredit writes through the transaction that removes its task, so each task writes one row, once.
func grantCredit(ctx context.Context, tx *sql.Tx, task *outbox.Task[welcome]) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (usr_id, cents, reason) VALUES ($1, $2, 'welcome')`,
		task.Payload.UsrID, welcomeCredit)
	if err != nil {
		return fmt.Errorf("grant credit to user %d: %w", task.Payload.UsrID, err)
	}
	return nil
}

// sendWelcome talks to a mail server, so it is a Leased handler and holds no transaction meanwhile. It may
// run twice for one task, if its process dies after the mail was accepted: the task's id, which stays the
// same, goes with the mail for the receiver to recognise.
func sendWelcome(ctx context.Context, db *sql.DB, m *mailer, task *outbox.Task[welcome]) error {
	var email string
	err := db.QueryRowContext(ctx, `SELECT email FROM usr WHERE usr_id = $1`, task.Payload.UsrID).Scan(&email)
	if errors.Is(err, sql.ErrNoRows) {
		return handlers.Discard(fmt.Errorf("user %d is gone", task.Payload.UsrID))
	}
	if err != nil {
		return fmt.Errorf("look up user %d: %w", task.Payload.UsrID, err)
	}
	err = m.send(ctx, message{
		to:      email,
		subject: "Welcome!",
		text:    fmt.Sprintf("Thank you for signing up.\n\nA credit of %d.%02d is yours.\n", welcomeCredit/100, welcomeCredit%100),
		key:     fmt.Sprintf("outbox-task-%d", task.ID),
	})
	switch {
	case errors.Is(err, errRecipientRefused):
		return handlers.Dead(fmt.Errorf("mail to user %d: %w", task.Payload.UsrID, err))
	case err != nil:
		return fmt.Errorf("mail to user %d: %w", task.Payload.UsrID, err)
	}
	return nil
}

// tasks looks into the outbox: its tables are an API too.
type tasks struct {
	db *sql.DB
}

// pendingTask is a task that is still to do, as the API shows it: without the payload, which can hold secrets.
type pendingTask struct {
	TaskID   int64     `json:"task_id"`
	TaskType string    `json:"task_type"`
	State    string    `json:"state"`
	Attempt  int       `json:"attempt"`
	RunAt    time.Time `json:"run_at"`
}

// oldest returns up to limit tasks, the oldest first. Finished ones are gone from the table.
func (t *tasks) oldest(ctx context.Context, limit int) ([]pendingTask, error) {
	rows, err := t.db.QueryContext(ctx, `SELECT task_id, task_type, state, attempt, run_at
		FROM outbox.task ORDER BY task_id LIMIT $1`, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []pendingTask{}
	for rows.Next() {
		var one pendingTask
		if err := rows.Scan(&one.TaskID, &one.TaskType, &one.State, &one.Attempt, &one.RunAt); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, rows.Err()
}
