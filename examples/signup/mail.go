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

const (
	mailFrom   = "welcome@signup.example"
	mailDomain = "signup.example"

	// idempotencyHeader names the task that a mail comes from. A receiver that knows it drops repetitions.
	idempotencyHeader = "X-Idempotency-Key"
)

// errRecipientRefused means that the server will not take a mail for this address, however often it is sent: somebody has to do something.
var errRecipientRefused = errors.New("the mail server refuses the recipient")

// refusals are the enhanced status codes of RFC 3463 that tell something of the recipient.
var refusals = map[string]string{
	"5.1.1": "no such mailbox",
	"5.1.2": "no such domain",
	"5.2.1": "mailbox is disabled",
	"5.2.2": "mailbox is full",
}

// refusal is errRecipientRefused with the cause in words of our own, as the server's may name the address.
func refusal(err *mail.SendError) error {
	text := strconv.Itoa(err.ErrorCode())
	if code := err.EnhancedStatusCode(); code != "" {
		text += " " + code
		if words := refusals[code]; words != "" {
			text += " " + words
		}
	}
	return fmt.Errorf("%w: %s", errRecipientRefused, text)
}

// mailer sends mails through one SMTP server. It is safe for concurrent use.
type mailer struct {
	client *mail.Client
}

type message struct {
	to, subject, text string
	key               string // the same whenever the same mail is sent
}

// newMailer is for the server at address, HOST:PORT. It uses TLS if the server offers it.
func newMailer(address string) (*mailer, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("mail server: %w", err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || host == "" || port == 0 {
		return nil, fmt.Errorf("mail server %q: want HOST:PORT", address)
	}
	client, err := mail.NewClient(host, mail.WithPort(int(port)), mail.WithTLSPolicy(mail.TLSOpportunistic),
		mail.WithTimeout(15*time.Second), mail.WithoutNoop())
	if err != nil {
		return nil, fmt.Errorf("mail server %q: %w", address, err)
	}
	return &mailer{client: client}, nil
}

// send returns nil once the server has accepted the mail. Errors name no address, since they end up in logs.
func (m *mailer) send(ctx context.Context, msg message) error {
	letter := mail.NewMsg()
	if err := letter.From(mailFrom); err != nil {
		return err
	}
	if err := letter.To(msg.to); err != nil {
		return errRecipientRefused
	}
	letter.Subject(msg.subject)
	letter.SetBodyString(mail.TypeTextPlain, msg.text)
	letter.SetDate()
	letter.SetMessageIDWithValue(msg.key + "@" + mailDomain)
	letter.SetGenHeader(idempotencyHeader, msg.key)

	err := m.client.DialAndSendWithContext(ctx, letter)
	if err == nil || letter.IsDelivered() { // a failed QUIT after the mail was taken is no failure
		return nil
	}
	var refused *mail.SendError
	if !errors.As(err, &refused) {
		return err
	}
	if refused.Reason == mail.ErrSMTPRcptTo && refused.ErrorCode() >= 500 {
		return refusal(refused)
	}
	return fmt.Errorf("mail server: %v, code %d", refused.Reason, refused.ErrorCode())
}
