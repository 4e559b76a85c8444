package outboxkafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

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
