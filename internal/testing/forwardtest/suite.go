package forwardtest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// Publisher is the form of a Publisher of each module.
type Publisher interface {
	forward.Publisher
	Ready(ctx context.Context) error
	io.Closer
}

// Broker is a broker, or a place on a shared one, that one test has for itself.
type Broker struct {
	URL      string
	Of       any    // what Mended.Break gets
	To       string // the destination of events
	Open     func(t testing.TB) Publisher
	Received func(t testing.TB, least int) []Received // waits until so many have arrived

	Stop, Start func()                 // no connection meanwhile
	Hold        func() <-chan struct{} // holds back what the publisher sends; the channel tells when
	Release     func()
	LoseReplies func() (restore func())
}

// Suite has the properties that tests of all publishers share.
type Suite struct {
	New    func(t testing.TB) *Broker
	Prefix string // of the attributes
	Once   bool   // the broker stores a repetition once
	// Refused changes an event into one that can never be published, Unready into one whose target is
	// at fault.
	Refused, Unready map[string]func(*forward.Event)
	// Mended are faults that cost attempts until they are mended: before the relay runs. says is a
	// part of the reason in Health.
	Mended map[string]Mended
	// Kills runs relays in processes that are killed, for which TestMain calls Main.
	Kills bool
	// Leaves are functions of goroutines that the first Publish starts and Close ends.
	Leaves []string
}

// Mended is a fault of a broker that somebody mends.
type Mended struct {
	Break func(t testing.TB, of any) (mend func())
	Says  string
}

// Event is an event to a destination.
func Event(id, to string) *forward.Event {
	return &forward.Event{ID: id, Source: "/shop", Type: "order.placed", OrderingKey: "c1", Subject: "order/9",
		Time:    time.Unix(1e9, 0),
		Headers: map[string]string{"traceparent": "00-1"}, Data: []byte(`{"n": 1}`), To: to, Attempt: 1}
}

// Run runs the tests of the suite.
func (s *Suite) Run(t *testing.T) {
	tests := map[string]func(*testing.T, *Broker){
		"an event arrives with its attributes": s.arrives, "refused events leave their neighbours alone": s.refuses,
		"a broker that is down is unavailable": s.isDown, "Publish ends with its context": s.endsWithContext,
		"Close waits for what is in flight": s.closes, "a lost reply": s.losesReply,
		"an outage costs no attempt": s.outage,
	}
	if s.Kills {
		tests["events of a key arrive in order through kills"] = s.kills
	}
	for what, fault := range s.Mended {
		tests["what is mended late loses nothing: "+what] = func(t *testing.T, b *Broker) { s.mends(t, b, fault) }
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s.New(t))
		})
	}
}

// Ready waits until the publisher can be used.
func Ready(t testing.TB, p Publisher) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, "the publisher to be ready",
		func() bool { return p.Ready(t.Context()) == nil })
}

// Unavailable checks that each of n errors is the broker's.
func Unavailable(t testing.TB, errs []error, n int) {
	t.Helper()
	if len(errs) != n {
		t.Fatalf("%d errors, want %d", len(errs), n)
	}
	for _, err := range errs {
		if Fault(err) != "the broker's" {
			t.Errorf("%s: %v, want an error of the broker", Fault(err), err)
		}
	}
}
