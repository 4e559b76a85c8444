package outboxwebhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/guard"
)

const (
	mostRetryAfter = time.Hour
	mostAnswer     = 64 << 10 // of an answer that is read, so that its connection can be used again
)

// post sends an event, and returns the meaning of the answer. answered reports whether it came.
func (p *Publisher) post(ctx context.Context, at *endpoint, e *forward.Event) (answered bool, err error) {
	request, err := p.request(ctx, e)
	if err != nil {
		return false, fmt.Errorf("outboxwebhook: event %s to %s: %w", e.ID, place(e.To), err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		if of := (*neturl.Error)(nil); errors.As(err, &of) { // without the URL, which may be secret
			err = of.Err
		}
		wrapped := fmt.Errorf("outboxwebhook: event %s to %s: %w", e.ID, place(e.To), err)
		if errors.Is(err, errRefused) && isAddress(e.To) { // a name may get another address
			wrapped = forward.Permanent(wrapped)
		}
		return false, wrapped
	}
	_, _ = io.CopyN(io.Discard, response.Body, mostAnswer)
	_ = response.Body.Close()
	return true, p.judge(ctx, at, e, response)
}

func (p *Publisher) judge(ctx context.Context, at *endpoint, e *forward.Event, r *http.Response) error {
	err := fmt.Errorf("outboxwebhook: event %s to %s: the answer is %s", e.ID, place(e.To), r.Status)
	switch s := r.StatusCode; {
	case s >= 200 && s < 300:
		return nil
	case s == http.StatusGone:
		at.rest(p.config.GoneFor, true)
		if p.config.OnGone != nil {
			_, failed := await(ctx, "OnGone", func() (struct{}, error) { return struct{}{}, p.config.OnGone(ctx, e) })
			if failed != nil {
				err = fmt.Errorf("%w; %w", err, failed)
			}
		}
		return forward.Permanent(err)
	case s >= 300 && s < 400:
		return fmt.Errorf("%w; redirects are not followed", err)
	case s == http.StatusRequestEntityTooLarge:
		return forward.Permanent(err)
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable:
		if d := retryAfter(r.Header.Get("Retry-After"), time.Now()); d > 0 {
			at.rest(d, false)
			return handlers.RetryAfter(d, err)
		}
	}
	return err
}

// retryAfter is the time of the header, which has seconds or a date: at most an hour; 0 without
// one.
func retryAfter(text string, now time.Time) time.Duration {
	seconds, err := strconv.ParseUint(text, 10, 64)
	d := time.Duration(min(seconds, uint64(mostRetryAfter/time.Second))) * time.Second
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		at, err := http.ParseTime(text)
		if err != nil {
			return 0
		}
		d = at.Sub(now.Truncate(time.Second)) // dates have no parts of seconds, so errors have none
	}
	return min(max(d, 0), mostRetryAfter)
}

func (p *Publisher) request(ctx context.Context, e *forward.Event) (*http.Request, error) {
	if err := p.config.checkURL(e.To); err != nil {
		return nil, forward.Permanent(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.To, bytes.NewReader(e.Data))
	if err != nil {
		return nil, forward.Permanent(fmt.Errorf("%w: the URL is not valid", errRefused))
	}
	own := *e
	own.Headers = nil
	for _, h := range own.CloudEvents("ce-") {
		request.Header.Set(h.Name, headerText(h.Value))
	}
	for _, name := range p.config.TaskHeaders {
		if v, any := e.Headers[name]; any {
			request.Header.Set(name, plainText(v))
		}
	}
	request.Header.Set("Content-Type", forward.ContentType)
	request.Header.Set("User-Agent", "outbox-webhook")
	return request, p.sign(ctx, request, e)
}

// headerText escapes the characters that CloudEvents' binding for HTTP does not allow: all but
// printable ASCII without spaces, quotes and percent signs.
func headerText(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// plainText is a header of the task's, as it is if a header can have it.
func plainText(s string) string {
	if strings.IndexFunc(s, func(c rune) bool { return c < ' ' && c != '\t' || c >= 0x7f }) < 0 {
		return s
	}
	return headerText(s)
}

// webhookID is the same for each attempt, and has no dot, which separates the parts that are
// signed.
func webhookID(e *forward.Event) string {
	return strings.ReplaceAll(headerText(e.ID), ".", "%2E")
}

// sign signs the request with each of the endpoint's secrets.
func (p *Publisher) sign(ctx context.Context, r *http.Request, e *forward.Event) error {
	id, now := webhookID(e), time.Now()
	r.Header.Set(standardwebhooks.HeaderWebhookID, id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	if p.config.Secrets == nil {
		return nil
	}
	secrets, err := await(ctx, "Secrets", func() ([]string, error) { return p.config.Secrets(ctx, e) })
	if err != nil {
		return fmt.Errorf("the secrets of the endpoint: %w", err)
	}
	if len(secrets) == 0 {
		return errors.New("the endpoint has no secrets")
	}
	var signatures []string
	for i, secret := range secrets {
		w, err := standardwebhooks.NewWebhook(secret)
		if err != nil || strings.TrimPrefix(secret, "whsec_") == "" {
			return fmt.Errorf("secret %d of the endpoint is not valid", i)
		}
		s, err := w.Sign(id, now, e.Data)
		if err != nil {
			return fmt.Errorf("sign with secret %d: %w", i, err)
		}
		signatures = append(signatures, s)
	}
	r.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}

// await calls a function of the Config, and waits for it until ctx ends. One that hangs goes on,
// and costs its event an attempt: it does not hold up the endpoint.
func await[T any](ctx context.Context, name string, f func() (T, error)) (T, error) {
	value, err := guard.Within(ctx, f, nil)
	if err != nil {
		err = fmt.Errorf("function Config.%s: %w", name, err)
	}
	return value, err
}
