package main

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

func TestSinkKeepsWhatIsSentAndKnowsRepetitions(t *testing.T) {
	inbox := testSink(t)
	m := testMailer(t, inbox.address())
	msg := message{to: "a@example.com", subject: "Grüße, with a = sign", text: "Line one\n.\nLine three, which is long enough to be broken where a line of a mail must be broken: ünder 76.\n", key: "outbox-task-7"}
	for range 2 {
		if err := m.send(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	mails := inbox.newest(10)
	if len(mails) != 1 {
		t.Fatalf("%d mails, want one: %+v", len(mails), mails)
	}
	got := mails[0]
	if got.To != msg.to || got.Subject != msg.subject || got.Text != strings.TrimSpace(msg.text) ||
		got.IdempotencyKey != msg.key || got.MessageID != "<outbox-task-7@signup.example>" || got.Copies != 2 {
		t.Errorf("got %+v, want two copies of %+v", got, msg)
	}
}

func TestMailCannotSmuggleHeaders(t *testing.T) {
	inbox := testSink(t)
	m := testMailer(t, inbox.address())
	err := m.send(t.Context(), message{to: "a@example.com", subject: "Hello\r\nBcc: b@example.com\r\n\r\nbody", text: "text", key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	got := inbox.newest(1)[0]
	if got.To != "a@example.com" || got.Text != "text" || got.IdempotencyKey != "k" {
		t.Errorf("got %+v, want the line break to stay in the subject", got)
	}
	if err := m.send(t.Context(), message{to: "a@example.com\r\nBcc: b@example.com", key: "k2"}); !errors.Is(err, errRecipientRefused) {
		t.Errorf("address with a line break: %v, want errRecipientRefused", err)
	}
}

// refuser is a mail server that takes nothing.
type refuser struct {
	sinkSession
	answer smtp.SMTPError
}

func (r *refuser) Rcpt(to string, _ *smtp.RcptOptions) error {
	answer := r.answer
	answer.Message = "no thanks, " + to
	return &answer
}

func TestWelcomeMailRetriesUnlessTheRecipientIsRefusedForGood(t *testing.T) {
	db := testDatabase(t)
	id := insertUser(t, db, "a@example.com")
	send := func(address string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return sendWelcome(ctx, db.DB, testMailer(t, address), &outbox.Task[welcome]{ID: 7, Payload: welcome{UsrID: id}})
	}
	for _, tt := range []struct {
		code int
		want string
	}{{550, "dead"}, {451, "retry"}} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
			return &refuser{answer: smtp.SMTPError{Code: tt.code, EnhancedCode: smtp.EnhancedCode{tt.code / 100, 1, 1}}}, nil
		}))
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		err = send(listener.Addr().String())
		if err == nil || handlers.ActionOf(err) != tt.want {
			t.Errorf("answer %d: %v, want action %s", tt.code, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "@") {
			t.Errorf("answer %d: the error names the address: %v", tt.code, err)
		}
		server.Close()
		listener.Close()
		<-done
		if err := send(listener.Addr().String()); err == nil || handlers.ActionOf(err) != "retry" {
			t.Errorf("no server: %v, want a plain failure", err)
		}
	}
}

func TestWelcomeMailToNobodyIsDiscarded(t *testing.T) {
	db := testDatabase(t)
	err := sendWelcome(t.Context(), db.DB, testMailer(t, "127.0.0.1:1"), &outbox.Task[welcome]{ID: 7, Payload: welcome{UsrID: 12345}})
	if err == nil || handlers.ActionOf(err) != "discard" {
		t.Errorf("got %v, want Discard", err)
	}
}

func TestCreditIsPartOfTheTransaction(t *testing.T) {
	db := testDatabase(t)
	id := insertUser(t, db, "a@example.com")
	undo := errors.New("undo")
	for _, want := range []error{undo, nil} {
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			if err := grantCredit(t.Context(), tx, &outbox.Task[welcome]{ID: 7, Payload: welcome{UsrID: id}}); err != nil {
				return err
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Fatal(err)
		}
	}
	list, err := (&users{db: db.DB}).newest(t.Context(), 1)
	if err != nil || len(list) != 1 || list[0].CreditCents != welcomeCredit {
		t.Errorf("got %+v, %v; want one credit of %d", list, err, welcomeCredit)
	}
}

func insertUser(t *testing.T, db *database, email string) (id int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `INSERT INTO usr (email, password_hash) VALUES ($1, 'none') RETURNING usr_id`, email).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestFullMailboxesRefuseWithTheCauseUntilTheyAreEmptied(t *testing.T) {
	inbox := testSink(t)
	m := testMailer(t, inbox.address())
	send := func(to string) error {
		return m.send(t.Context(), message{to: to, subject: "Hello", text: "text", key: to})
	}
	for range 2 {
		for _, to := range []string{"a@full.example", "B@FULL.Example"} {
			err := send(to)
			if !errors.Is(err, errRecipientRefused) || !strings.HasSuffix(err.Error(), ": 552 5.2.2 mailbox is full") {
				t.Errorf("%s: %v, want a refusal with its cause", to, err)
			}
		}
		for _, to := range []string{"a@example.com", "a@not-full.example", "a@full.example.com"} {
			if err := send(to); err != nil {
				t.Errorf("%s: %v", to, err)
			}
		}
		inbox.setFull(false)
		if err := send("a@full.example"); err != nil {
			t.Errorf("after it was emptied: %v", err)
		}
		inbox.setFull(true)
	}
}

// A server's words may name the address, so the error has codes, and words of our own for those that are known.
func TestRefusalNamesTheCodeAndNoAddress(t *testing.T) {
	for _, tt := range []struct {
		answer smtp.SMTPError
		want   string
	}{
		{smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}}, "550 5.1.1 no such mailbox"},
		{smtp.SMTPError{Code: 552, EnhancedCode: smtp.EnhancedCode{5, 2, 2}}, "552 5.2.2 mailbox is full"},
		{smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 7, 1}}, "554 5.7.1"},
		{smtp.SMTPError{Code: 550, EnhancedCode: smtp.NoEnhancedCode}, "550"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &refuser{answer: tt.answer}, nil }))
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		err = testMailer(t, listener.Addr().String()).send(t.Context(), message{to: "a@example.com", subject: "Hello", text: "text", key: "k"})
		if want := errRecipientRefused.Error() + ": " + tt.want; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		server.Close()
		listener.Close()
		<-done
	}
}
