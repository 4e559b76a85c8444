package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// refuser is a mail server that takes nothing.
type refuser struct {
	session
	code int
}

func (r *refuser) Rcpt(to string, _ *smtp.RcptOptions) error {
	return &smtp.SMTPError{Code: r.code, EnhancedCode: smtp.EnhancedCode{r.code / 100, 1, 1}, Message: "no thanks, " + to}
}

func TestTheWelcomeMailIsRetriedUnlessItCanNeverArrive(t *testing.T) {
	db := openDatabase(t, pgtest.Database(t))
	relaytest.Must(signUp(t.Context(), db, "a@example.com"))
	welcomeBy := func(server string, usrID int64) error {
		m, err := newMailer(server)
		relaytest.Must(err)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return sendWelcome(ctx, db, m, &outbox.Task[welcome]{ID: 7, Payload: welcome{usrID}})
	}
	for _, tt := range []struct {
		code         int
		action, text string
	}{
		{550, "dead", "the mail server refuses the recipient: 550 5.1.1"},
		{451, "retry", "451 4.1.1"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		relaytest.Must(err)
		server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
			return &refuser{code: tt.code},
				nil
		}))
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		err = welcomeBy(listener.Addr().String(), 1)
		if err == nil || handlers.ActionOf(err) != tt.action || !strings.Contains(err.Error(), tt.text) ||
			strings.Contains(err.Error(), "@") {
			t.Errorf("answer %d: %v, want %s with %q and no address", tt.code, err, tt.action, tt.text)
		}
		server.Close()
		listener.Close()
		<-done
		if err := welcomeBy(listener.Addr().String(), 1); err == nil || handlers.ActionOf(err) != "retry" {
			t.Errorf("no server: %v, want a retry", err)
		}
	}
	inbox, err := startSink()
	relaytest.Must(err)
	defer inbox.close()
	if err := welcomeBy(inbox.address(), 12345); err == nil || handlers.ActionOf(err) != "discard" {
		t.Errorf("a user who is gone: %v, want Discard", err)
	}
	for range 2 { // as after the death of a relay
		if err := welcomeBy(inbox.address(), 1); err != nil {
			t.Error(err)
		}
	}
	if mails := inbox.all(); len(mails) != 1 || mails[0].copies != 2 || !strings.HasSuffix(mails[0].key, "-000000000007") {
		t.Errorf("the inbox has %+v, want a mail that came twice", mails)
	}
}
