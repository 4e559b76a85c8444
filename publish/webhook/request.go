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
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/guard"
	"golang.org/x/time/rate"
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

const (
	leastPause = time.Second
	mostPause  = time.Minute
)

// endpoint is the state of a URL.
//
//	healthy --a request is late--> hanging --it is answered--> slow --one is answered in time--> healthy
//	slow    --a request is not answered--> hanging
//
// No call waits for the requests of an endpoint that is slow or hangs. An endpoint that hangs gets
// one request at a time, after a pause that grows.
type endpoint struct {
	slots   chan struct{}
	limiter *rate.Limiter // nil: no limit

	mu      sync.Mutex
	until   time.Time     // no request before
	gone    bool          // until then: it answered 410
	slow    bool          // the last answer was late, or there was none
	hangs   bool          // there was none yet
	trying  bool          // while it hangs: a request is under way
	pause   time.Duration // after the last late one
	lastUse time.Time
}

func (c *Config) newEndpoint() *endpoint {
	e := &endpoint{slots: make(chan struct{}, c.Concurrency), lastUse: time.Now()}
	if c.Rate > 0 {
		limit := rate.Limit(float64(c.Rate) / c.RatePer.Seconds())
		e.limiter = rate.NewLimiter(limit, max(1, min(c.Concurrency, int(limit))))
	}
	return e
}

// enter asks for a request. wait is the time until the next request is allowed; gone is its reason.
// If alone, the endpoint is slow and no call waits for the request.
func (e *endpoint) enter(now time.Time) (wait time.Duration, gone, alone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastUse = now
	switch {
	case now.Before(e.until):
		return e.until.Sub(now), e.gone, false
	case e.hangs && e.trying:
		return max(e.pause, leastPause), false, false
	}
	e.gone, e.trying = false, e.hangs
	return 0, false, e.slow
}

// skip notes that no request follows enter.
func (e *endpoint) skip() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trying = false
}

// late notes that a request has not been answered in time.
func (e *endpoint) late() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.slow {
		e.slow, e.hangs, e.trying = true, true, true // the late one is under way
	}
}

// ended notes the end of a request: whether its answer came at all, and in time.
func (e *endpoint) ended(answered, inTime bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trying = false
	switch now := time.Now(); {
	case answered:
		e.slow, e.hangs, e.pause = e.slow && !inTime, false, 0
	case e.slow && !now.Before(e.until): // else others that began with it have ended as well
		e.hangs = true
		e.pause = min(max(2*e.pause, leastPause), mostPause)
		e.until = now.Add(e.pause)
	}
}

// rest lets no request through for d, or for longer if that was said before.
func (e *endpoint) rest(d time.Duration, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.gone = gone || e.gone && now.Before(e.until)
	if until := now.Add(d); until.After(e.until) {
		e.until = until
	}
}

// resume ends a rest.
func (e *endpoint) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.until, e.gone = time.Time{}, false
}

// waits waits for the endpoint's rate and a slot.
func (e *endpoint) waits(ctx context.Context, deadline time.Time) bool {
	limit, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if e.limiter != nil && e.limiter.Wait(limit) != nil {
		return false
	}
	select {
	case e.slots <- struct{}{}:
		return true
	case <-limit.Done():
		return false
	}
}

// admits takes a slot if there is one now, and the rate allows it.
func (e *endpoint) admits() bool {
	select {
	case e.slots <- struct{}{}:
	default:
		return false
	}
	if e.limiter != nil && !e.limiter.Allow() {
		<-e.slots
		return false
	}
	return true
}
