package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	neturl "net/url"
	"os"
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
	status, err := post(ctx, service, neturl.Values{"to": {to}, "subject": {subject}, "text": {text}}, key)
	switch {
	case err != nil:
		return err
	case status == http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: %d", errRecipientRefused, status)
	case status >= 300:
		return fmt.Errorf("mail service: status %d", status)
	}
	return nil
}

func post(ctx context.Context, url string, form neturl.Values, key string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("User-Agent", fmt.Sprint("process ", os.Getpid()))
	req.Header.Set(idempotencyHeader, key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// mailsOf asks the mail service for all that it has.
func mailsOf(ctx context.Context, service string) (in inbox, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, service, nil)
	if err != nil {
		return in, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return in, err
	}
	defer res.Body.Close()
	err = json.NewDecoder(res.Body).Decode(&in)
	return in, err
}
