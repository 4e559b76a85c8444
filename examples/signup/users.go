package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"golang.org/x/crypto/bcrypt"
)

//go:embed schema.sql
var schemaSQL string

const sessionLife = 30 * 24 * time.Hour

// What can be wrong with a sign-up. The texts are for the person who signs up.
var (
	errEmail      = errors.New("this is not an e-mail address")
	errPassword   = errors.New("a password must be 8 to 72 bytes long")
	errEmailTaken = errors.New("this e-mail address is signed up already")
)

// users keeps the app's users in PostgreSQL.
type users struct {
	db       *sql.DB
	traces   *traces
	hashCost int // of bcrypt
}

// user is what the page and the API show of one.
type user struct {
	UsrID       int64     `json:"usr_id"`
	Email       string    `json:"email"`
	CreditCents int       `json:"credit_cents"`
	CreatedAt   time.Time `json:"created_at"`
}

// signUp creates a user with a session, and the two tasks that follow from it, in one transaction: either
// all of it is there afterwards, or none. It returns the token of the session. Errors: errEmail, errPassword
// and errEmailTaken, and those of the database.
func (u *users) signUp(ctx context.Context, email, password string) (token string, err error) {
	email = strings.TrimSpace(email)
	if !validEmail(email) {
		return "", errEmail
	}
	if len(password) < 8 || len(password) > 72 { // bcrypt takes no more
		return "", errPassword
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), u.hashCost) // slow, so before the transaction
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	token = rand.Text()
	err = outbox.InTx(ctx, u.db, func(tx *sql.Tx) error {
		var id int64
		err := tx.QueryRowContext(ctx, `INSERT INTO usr (email, password_hash) VALUES ($1, $2) RETURNING usr_id`,
			email, string(hash)).Scan(&id)
		if uniqueViolation(err) {
			return errEmailTaken
		}
		if err != nil {
			return fmt.Errorf("insert user: %w", err)
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO session (token_hash, usr_id, expires_at) VALUES ($1, $2, now() + $3 * interval '1 second')`,
			tokenHash(token), id, sessionLife.Seconds()); err != nil {
			return fmt.Errorf("insert session: %w", err)
		}
		// As grantWelcomeCredit.Enqueue(ctx, tx, welcome{UsrID: id}) does, within a span.
		if _, err := u.traces.Enqueue(ctx, tx, grantWelcomeCredit.New(welcome{UsrID: id})); err != nil {
			return err
		}
		_, err = u.traces.Enqueue(ctx, tx, sendEmailWelcome.New(welcome{UsrID: id}))
		return err
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// bySession returns the e-mail of the user whose session it is, or "" if there is none.
func (u *users) bySession(ctx context.Context, token string) (email string, err error) {
	err = u.db.QueryRowContext(ctx, `SELECT email FROM session JOIN usr USING (usr_id)
		WHERE token_hash = $1 AND expires_at > now()`, tokenHash(token)).Scan(&email)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return email, err
}

// newest returns up to limit users, the newest first.
func (u *users) newest(ctx context.Context, limit int) ([]user, error) {
	rows, err := u.db.QueryContext(ctx, `SELECT usr_id, email, created_at,
		(SELECT coalesce(sum(cents), 0) FROM ledger WHERE ledger.usr_id = usr.usr_id)
		FROM usr ORDER BY usr_id DESC LIMIT $1`, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []user{}
	for rows.Next() {
		var one user
		if err := rows.Scan(&one.UsrID, &one.Email, &one.CreatedAt, &one.CreditCents); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

// validEmail accepts a bare address: no display name, comment or quotes, nothing that does not print.
func validEmail(email string) bool {
	if len(email) > 254 || !utf8.ValidString(email) || strings.ContainsFunc(email, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return false
	}
	parsed, err := mail.ParseAddress(email)
	return err == nil && parsed.Name == "" && parsed.Address == email
}

// uniqueViolation knows the SQLSTATE of every driver that has one.
func uniqueViolation(err error) bool {
	var s interface{ SQLState() string }
	return errors.As(err, &s) && s.SQLState() == "23505"
}

func tokenHash(token string) []byte {
	hash := sha256.Sum256([]byte(token))
	return hash[:]
}
