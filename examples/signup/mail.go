package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	neturl "net/url"
	"strings"
)

// idempotencyHeader names the task that a mail comes from. A receiver that knows it drops
// repetitions.
const idempotencyHeader = "Idempotency-Key"

// errRecipientRefused means that the service will never take a mail for this address.
var errRecipientRefused = errors.New("the mail service refuses the recipient")

// sendMail returns nil once the mail service at the URL has accepted the mail. Errors have the
// status of the answer and not its words, which may name the address: they end up in logs.
func sendMail(ctx context.Context, service, to, subject, text, key string) error {
	form := neturl.Values{"to": {to}, "subject": {subject}, "text": {text}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, service, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set(idempotencyHeader, key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	switch {
	case res.StatusCode == http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: %s", errRecipientRefused, res.Status)
	case res.StatusCode >= 300:
		return fmt.Errorf("mail service: %s", res.Status)
	}
	return nil
}
