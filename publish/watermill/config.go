package outboxwatermill

import "context"

// Config says how events become messages. It is copied by New; the zero value of a field is its
// default.
type Config struct {
	// KeyName is the name of the metadata with the ordering key, for a marshaler that partitions by
	// it. Events without a key have none. Default "partition_key".
	KeyName string
	// Classify may mark an error of Watermill's publisher with forward.Permanent,
	// forward.TargetUnavailable or forward.Unavailable. It returns the error, marked or not; nil counts
	// as unmarked. It is called by several goroutines at once. Default nil: each error counts as an
	// attempt.
	Classify func(error) error
	// Ready says whether the broker can be used, as Watermill cannot tell. Default nil: it can.
	Ready func(context.Context) error
}
