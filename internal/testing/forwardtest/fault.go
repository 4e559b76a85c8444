package forwardtest

import "github.com/txoutbox/outbox/forward"

// Fault is whose fault a publisher's error is by its mark, in the words of docs/faults.md.
func Fault(err error) string {
	switch {
	case err == nil:
		return "none"
	case forward.IsPermanent(err):
		return "the event's, for good"
	case forward.IsTargetUnavailable(err):
		return "the target's"
	case forward.IsUnavailable(err):
		return "the broker's"
	}
	return "the event's"
}
