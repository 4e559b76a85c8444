package outboxkafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

// call is one call of Publish.
type call struct {
	client *kgo.Client
	events []*forward.Event
	errs   []error // of the client

	asked       bool  // whether a broker answers
	unreachable error // why none does
}

// noAnswer is the time for results after which a broker is asked whether it answers, if the call
// has no end of its own.
const noAnswer = 5 * time.Second

// publish sends the events, and waits until each is acknowledged or refused.
func (c *call) publish(ctx context.Context) []error {
	c.send(ctx, 0, len(c.events))
	out := make([]error, len(c.events))
	for i, err := range c.errs {
		// The client fails all records of a partition with the first one's context, which may be
		// that of a call that has ended.
		if isContextError(err) && ctx.Err() == nil {
			c.send(ctx, i, i+1)
		}
		out[i] = c.marked(ctx, i)
		// A broker refuses a batch as a whole for one of its records.
		switch {
		case len(c.events) == 1, !publisher.OfOneEvent(out[i]), errors.Is(err, kerr.InvalidTopicException):
		case ctx.Err() == nil:
			c.send(ctx, i, i+1)
			out[i] = c.marked(ctx, i)
		default:
			out[i] = publisher.NotSent(fmt.Errorf("outboxkafka: not sent alone in time: %v", out[i]))
		}
	}
	return publisher.Result(out)
}

// marked is the error of an event, marked by its fault.
func (c *call) marked(ctx context.Context, i int) error {
	switch err := c.errs[i]; {
	case err == nil:
		return nil
	case answerOf(err) != nil:
		return byAnswer(c.events[i], err)
	default:
		return c.unanswered(ctx, c.events[i], err)
	}
}

// unanswered marks an error without an answer of a broker by its fault.
func (c *call) unanswered(ctx context.Context, e *forward.Event, err error) error {
	if isConnectionError(err) {
		return forward.Unavailable(of(e, err), 0)
	}
	c.ask(ctx)
	switch {
	case c.unreachable != nil:
		return forward.Unavailable(of(e, fmt.Errorf("%w: %w", err, c.unreachable)), 0)
	case isContextError(err):
		return forward.Unavailable(of(e, err), 0)
	case errors.Is(err, kgo.ErrRecordRetries), errors.Is(err, kgo.ErrRecordTimeout):
		return forward.TargetUnavailable(of(e, err), 0)
	}
	return of(e, err)
}

// ask asks once whether a broker answers, for which it logs in.
func (c *call) ask(ctx context.Context) {
	if c.asked || ctx.Err() != nil {
		return
	}
	c.asked = true
	if err := c.client.Ping(ctx); err != nil && ctx.Err() == nil {
		c.unreachable = fmt.Errorf("no broker answers: %w", err)
	}
}

// send sends the events from first to before last at once, and waits for the results.
func (c *call) send(ctx context.Context, first, last int) {
	type result struct {
		i   int
		err error
	}
	results := make(chan result, last-first) // those that come after ctx has ended find room
	for i := first; i < last; i++ {
		c.errs[i] = errMissing
		c.client.Produce(ctx, record(c.events[i]), func(_ *kgo.Record, err error) { results <- result{i, err} })
	}
	long := time.NewTimer(halfOf(ctx))
	defer long.Stop()
	for n := first; n < last; {
		select {
		case r := <-results:
			c.errs[r.i] = r.err
			n++
		case <-long.C:
			c.ask(ctx)
		case <-ctx.Done():
			for len(results) > 0 { // both may be so
				r := <-results
				c.errs[r.i] = r.err
			}
			for i := first; i < last; i++ {
				if c.errs[i] == errMissing {
					c.errs[i] = fmt.Errorf("no acknowledgement: %w", ctx.Err())
				}
			}
			return
		}
	}
}

// errMissing is that of an event whose result is not there yet.
var errMissing = errors.New("no result")

func halfOf(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return time.Until(end) / 2
	}
	return noAnswer
}

// recreated are the topics that were deleted and made again: the client knows them by ids that no
// broker has.
func (c *call) recreated() (topics []string) {
	for i, err := range c.errs {
		if errors.Is(err, kerr.UnknownTopicID) {
			topics = append(topics, c.events[i].To)
		}
	}
	return topics
}

// producerRefused reports whether the client can produce nothing any more: it keeps a refusal of
// its producer ID for good.
func (c *call) producerRefused(ctx context.Context) bool {
	for _, err := range c.errs {
		if answer := answerOf(err); answer != nil && !answer.Retriable {
			_, _, err := c.client.ProducerID(ctx)
			answer = answerOf(err)
			return answer != nil && !answer.Retriable
		}
	}
	return false
}

// record has the time of its publication, as Kafka deletes records by their age, and kgo's delivery
// timeout counts from it. The time of the event is in ce_time.
func record(e *forward.Event) *kgo.Record {
	r := &kgo.Record{Topic: e.To, Value: e.Data,
		Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(forward.ContentType)}}}
	if e.OrderingKey != "" {
		r.Key = []byte(e.OrderingKey)
	}
	for _, h := range e.CloudEvents("ce_") {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
	}
	return r
}

var (
	// never are answers that no retry changes.
	never = []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTopicException}
	// ofTopic are answers about a topic, beside those that the protocol calls retriable.
	ofTopic = []error{
		kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType,
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
	}
	// refusedLogins are answers to a login.
	refusedLogins = []error{kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState}
	// connectionErrors are those without an answer, beside errors of the network.
	connectionErrors = []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, kgo.ErrClientClosed, kgo.ErrAborting}
)

// answerOf is the broker's answer in an error of the client; nil if there is none.
func answerOf(err error) *kerr.Error {
	var answer *kerr.Error
	if publisher.IsAny(err, refusedLogins) || !errors.As(err, &answer) {
		return nil
	}
	return answer
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// isConnectionError reports whether there is no connection to a broker.
func isConnectionError(err error) bool {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	return !isContextError(err) && (errors.As(err, &network) || errors.As(err, &certificate) ||
		kgo.IsRetryableBrokerErr(err) || publisher.IsAny(err, connectionErrors) || publisher.IsAny(err, refusedLogins))
}

// byAnswer marks a broker's answer by its fault. An answer in no list is the event's.
func byAnswer(e *forward.Event, err error) error {
	err = of(e, err)
	switch {
	case publisher.IsAny(err, never):
		return forward.Permanent(err)
	case errors.Is(err, kerr.CorruptMessage): // which a broker answers to a record without a key as well
		return err
	case kerr.IsRetriable(err), publisher.IsAny(err, ofTopic):
		return forward.TargetUnavailable(err, 0)
	}
	return err
}

func of(e *forward.Event, err error) error {
	return fmt.Errorf("outboxkafka: event %s to %s: %w", e.ID, e.To, err)
}
