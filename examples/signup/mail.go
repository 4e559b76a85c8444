package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/wneessen/go-mail"
)

// idempotencyHeader names the task that a mail comes from. A receiver that knows it drops
// repetitions.
const idempotencyHeader = "X-Idempotency-Key"

// errRecipientRefused means that the server will never take a mail for this address.
var errRecipientRefused = errors.New("the mail server refuses the recipient")

// mailer sends mails through one SMTP server. It is safe for concurrent use.
type mailer struct{ client *mail.Client }

// newMailer is for the server at HOST:PORT.
func newMailer(server string) (*mailer, error) {
	host, service, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(service)
	if err != nil {
		return nil, err
	}
	client, err := mail.NewClient(host, mail.WithPort(port), mail.WithTLSPolicy(mail.TLSOpportunistic),
		mail.WithTimeout(15*time.Second))
	return &mailer{client}, err
}

// send returns nil once the server has accepted the mail. Errors have the server's codes and not
// its words, which may name the address: they end up in logs.
func (m *mailer) send(ctx context.Context, to, subject, text, key string) error {
	letter := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := letter.From("welcome@signup.example"); err != nil {
		return err
	}
	if err := letter.To(to); err != nil {
		return errRecipientRefused
	}
	letter.Subject(subject)
	letter.SetBodyString(mail.TypeTextPlain, text)
	letter.SetGenHeader(idempotencyHeader, key)

	err := m.client.DialAndSendWithContext(ctx, letter)
	var refused *mail.SendError
	switch {
	case err == nil || letter.IsDelivered(): // a failed QUIT after the mail was taken is no failure
		return nil
	case !errors.As(err, &refused):
		return err
	case refused.Reason == mail.ErrSMTPRcptTo && refused.ErrorCode() >= 500:
		return fmt.Errorf("%w: %d %s", errRecipientRefused, refused.ErrorCode(), refused.EnhancedStatusCode())
	}
	return fmt.Errorf("mail server: %v: %d %s", refused.Reason, refused.ErrorCode(), refused.EnhancedStatusCode())
}
