package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"net/mail"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
)

// tables are the app's. The ledger has no UNIQUE (usr_id), on purpose: were a credit granted twice,
// it would show.
const tables = `
CREATE TABLE IF NOT EXISTS usr (usr_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS ledger (usr_id bigint NOT NULL REFERENCES usr, cents int NOT NULL);`

// Errors of a sign-up. The texts are for the person who signs up.
var (
	errEmail      = errors.New("this is not an e-mail address")
	errEmailTaken = errors.New("this e-mail address is signed up already")
)

// signUp creates a user, and the tasks that follow from it, in one transaction: all of it is there
// afterwards, or none.
func signUp(ctx context.Context, db *sql.DB, email string) error {
	if parsed, err := mail.ParseAddress(email); err != nil || parsed.Address != email {
		return errEmail
	}
	// The page shows the lines from here
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		var w welcome
		err := tx.QueryRowContext(ctx, `INSERT INTO usr (email) VALUES ($1)
			ON CONFLICT DO NOTHING RETURNING usr_id`, email).Scan(&w.UsrID)
		if errors.Is(err, sql.ErrNoRows) {
			return errEmailTaken
		}
		if err != nil {
			return err // rolls back
		}
		if _, err := grantWelcomeCredit.Enqueue(ctx, tx, w); err != nil {
			return err
		}
		_, err = sendEmailWelcome.Enqueue(ctx, tx, w)
		return err // nil commits
	})
	// to here
}

//go:embed signup.go
var source string

// shownLines are the lines of signUp between its two comments, less their first tab.
func shownLines() (lines []string) {
	_, rest, _ := strings.Cut(source, "\t// The page shows the lines from here\n")
	shown, _, _ := strings.Cut(rest, "\t// to here\n")
	for line := range strings.Lines(shown) {
		lines = append(lines, strings.TrimPrefix(line, "\t"))
	}
	return lines
}

// user is a row of the page's list of users.
type user struct {
	Email string
	Cents int
}

// newestUsers returns up to limit users, the newest first.
func newestUsers(ctx context.Context, db *sql.DB, limit int) (list []user, err error) {
	err = sqlx.NewDb(db, "postgres").SelectContext(ctx, &list, `
		SELECT email, (SELECT coalesce(sum(cents), 0) FROM ledger WHERE ledger.usr_id = usr.usr_id) AS cents
		FROM usr ORDER BY usr_id DESC LIMIT $1`, limit)
	return list, err
}
