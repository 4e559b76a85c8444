package outboxnats

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/txoutbox/outbox/forward"
)

// maxSubject leaves room for the reply's subject and the sizes in a line of 4,096 bytes, the
// server's default: it closes the connection of a longer one.
const maxSubject = 3840

// messageID is the Nats-Msg-Id of an event. A stream may have the event of several targets.
func messageID(e *forward.Event) string {
	if e.Target == "" {
		return e.ID
	}
	return e.ID + "/" + e.Target
}

// message is an event's, or an error that is forward.Permanent.
func message(e *forward.Event) (*nats.Msg, error) {
	refuse := func(format string, args ...any) (*nats.Msg, error) {
		return nil, forward.Permanent(fmt.Errorf("outboxnats: event %s: %s", e.ID, fmt.Sprintf(format, args...)))
	}
	if len(e.To) > maxSubject {
		return refuse("the subject %.40q… has %d bytes, at most %d", e.To, len(e.To), maxSubject)
	}
	if !isSubject(e.To) {
		return refuse("%q is no subject: words between dots, without spaces, control characters, * and >", e.To)
	}
	m := nats.NewMsg(e.To)
	m.Data = e.Data
	m.Header.Set("Content-Type", forward.ContentType)
	for _, h := range e.CloudEvents("ce-") {
		if strings.HasPrefix(strings.ToLower(h.Name), "nats-") { // those steer JetStream
			continue
		}
		if !isToken(h.Name) {
			return refuse("%.40q is no name of a header: letters, digits and !#$%%&'*+-.^_`|~", h.Name)
		}
		if strings.ContainsAny(h.Value, "\r\n") {
			return refuse("the value of the header %s has a line break", h.Name)
		}
		m.Header[h.Name] = []string{h.Value}
	}
	if strings.ContainsAny(messageID(e), "\r\n") {
		return refuse("the message ID has a line break")
	}
	return m, nil
}

// isSubject reports whether a message can be published to the subject.
func isSubject(s string) bool {
	for word := range strings.SplitSeq(s, ".") {
		if word == "" {
			return false
		}
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '*' || r == '>' })
}

// isToken reports whether s is a token, as a header's name must be.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
			strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}
