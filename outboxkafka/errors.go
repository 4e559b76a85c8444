package outboxkafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox/forward"
)

// refusals are the errors that no retry mends. Those before the first of the topic's may be due to
// another record of the batch.
var (
	refusedRecords = []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp}
	refusedTopics  = []error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed, kerr.UnsupportedForMessageFormat}
)

func isAny(err error, of []error) bool {
	return slices.ContainsFunc(of, func(target error) bool { return errors.Is(err, target) })
}

// isOfOne reports whether a record of the batch is at fault, which need not be this one.
func isOfOne(err error) bool { return isAny(err, refusedRecords) }

// classify says what an error of the client means for the event; nil is nil.
func classify(e *forward.Event, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("outboxkafka: event %s to %s: %w", e.ID, e.To, err)
	var network net.Error
	switch {
	case isAny(err, refusedRecords), isAny(err, refusedTopics):
		return forward.Permanent(wrapped)
	case kerr.IsRetriable(err), errors.As(err, &network),
		isAny(err, []error{kgo.ErrRecordTimeout, kgo.ErrRecordRetries, kgo.ErrMaxBuffered, kgo.ErrClientClosed, kgo.ErrAborting,
			context.Canceled, context.DeadlineExceeded, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed}):
		return forward.Unavailable(wrapped, 0)
	}
	return wrapped
}
