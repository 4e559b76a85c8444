// Package tail is the language between relays and outbox tail: how long somebody looks, the channel, and
// events as texts of NOTIFY. Any role can send one, so Decode believes nothing, and a text has no error, no
// payload and no key.
package tail

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// Ahead is for how long a tail asks at once, and Renew how often it asks.
	Ahead = 15 * time.Second
	Renew = 5 * time.Second
	// Most is how far ahead a relay believes a request.
	Most = 30 * time.Second

	// Begun and Lost are the events that are no outcomes: a handler is called, and a run was lost with its
	// process.
	Begun = "begun"
	Lost  = "lost"
)

var events = []string{Begun, "done", "discarded", "run_again", "failed", "snoozed", "throttled", "dead", "canceled",
	"expired", "lease_lost", "drained", "released", "infrastructure", Lost}

// Events are the events of tasks that relays tell.
func Events() []string { return slices.Clone(events) }

// Left is for how long a relay tells by a request, which is a second since 1970. One that lies further ahead
// than a tail asks for was written by mistake, or while the server's clock was ahead.
func Left(until int64, now time.Time) time.Duration {
	if most := now.Add(Most).Unix(); until < now.Unix() || until > most {
		return 0
	}
	return max(0, time.Unix(until, 0).Sub(now))
}

// longest is PostgreSQL's limit for the name of a channel, in bytes.
const longest = 63

// Channel is the channel on which relays tell. No schema has a name with a dot, so it is no other's.
func Channel(schema string) string {
	const suffix = ".tail"
	if len(schema)+len(suffix) <= longest {
		return schema + suffix
	}
	sum := sha256.Sum256([]byte(schema))
	return schema[:40] + "." + hex.EncodeToString(sum[:8]) + suffix
}

// Probe is before the id that a tail sends to itself.
const Probe = "?"

// Event is what happened to a task.
type Event struct {
	At      int64  `json:"t"` // µs since 1970
	Name    string `json:"n"`
	Type    string `json:"y"`
	Kind    string `json:"k,omitempty"`
	TaskID  int64  `json:"i"`
	Attempt int    `json:"a,omitempty"`
	Took    int64  `json:"d,omitempty"` // µs
	Reason  string `json:"r,omitempty"`
}

// Message is the text of one NOTIFY.
type Message struct {
	Relay   string  `json:"r"`
	LeftOut int64   `json:"o,omitempty"` // events before these
	Events  []Event `json:"e"`
}

// room is for the events of a text: PostgreSQL takes less than 8,000 bytes.
const room = 7800

// Encode makes texts of the message, each short enough for a NOTIFY.
func Encode(m Message) (texts []string) {
	var some []string
	size := 0
	flush := func() {
		texts = append(texts, fmt.Sprintf(`{"r":%q,"o":%d,"e":[%s]}`, m.Relay, m.LeftOut, strings.Join(some, ",")))
		some, size, m.LeftOut = nil, 0, 0
	}
	for _, e := range m.Events {
		text, _ := json.Marshal(e) // texts and numbers have JSON
		if size+len(text)+1 > room {
			flush()
		}
		some, size = append(some, string(text)), size+len(text)+1
	}
	if len(some) > 0 || m.LeftOut > 0 {
		flush()
	}
	return texts
}

var (
	word = regexp.MustCompile(`^[a-z_]{1,32}$`)
	uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

const year10000 = 253402300800000000 // µs since 1970

// Decode reads a text, and reports whether a relay may have sent it. A newer relay's events may have other
// names.
func Decode(text string) (m Message, ok bool) {
	if json.Unmarshal([]byte(text), &m) != nil || !uuid.MatchString(m.Relay) || m.LeftOut < 0 {
		return Message{}, false
	}
	for _, e := range m.Events {
		if e.At < 0 || e.At >= year10000 || !word.MatchString(e.Name) || e.Kind != "" && !word.MatchString(e.Kind) ||
			e.Reason != "" && !word.MatchString(e.Reason) || e.Type == "" || len(e.Type) > 128 ||
			!utf8.ValidString(e.Type) || e.TaskID <= 0 || e.Attempt < 0 || e.Took < 0 {
			return Message{}, false
		}
	}
	return m, true
}
