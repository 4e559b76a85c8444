package forwardtest

import "github.com/txoutbox/outbox/forward"

// Fault is whose fault a publisher's error is by its mark, in the words of docs/faults.md.
func Fault(err error) string {
	_, broker := forward.IsUnavailable(err)
	_, target := forward.IsTargetUnavailable(err)
	switch {
	case err == nil:
		return "none"
	case forward.IsPermanent(err):
		return "the event's, for good"
	case target:
		return "the target's"
	case broker:
		return "the broker's"
	}
	return "the event's"
}
