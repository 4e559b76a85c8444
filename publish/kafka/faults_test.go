package outboxkafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
)

// impatient are options of a client that gives up at once.
var impatient = outboxkafka.Config{Options: []kgo.Opt{kgo.RecordRetries(0), kgo.UnknownTopicRetries(0)}}

// hidden are answers that the client does not show: after the first two it cannot know whether the
// broker has the record, so it sends it again without end.
var hidden = errors.Join(kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.DuplicateSequenceNumber,
	kerr.ConcurrentTransactions)

// docs/faults.md says of each answer of a broker whose fault it is. The broker gives each.
func TestTheMapOfKafka(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	answered := func(code *kerr.Error) error {
		p, err := outboxkafka.Open(b.url(), impatient) // anew, as some answers end a producer
		forwardtest.Must(t, err)
		defer p.Close()
		defer b.answers(code)()
		return errors.Join(p.Publish(t.Context(), []*forward.Event{event("1")})...)
	}
	byName := map[string]*kerr.Error{} // those that no row has named
	for code := int16(-1); code < 200; code++ {
		var known *kerr.Error
		if errors.As(kerr.ErrorForCode(code), &known) && known.Code == code && !errors.Is(hidden, known) {
			byName[known.Message] = known
		}
	}
	rest := func(is func(*kerr.Error) bool) (errs []error) {
		for name, code := range byName {
			if is(code) {
				errs = append(errs, answered(code))
				delete(byName, name)
			}
		}
		return errs
	}
	away := newBroker(t)
	gone := connect(t, away.url())
	away.stop()
	over, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	faultmap.Check(t, "Kafka", forwardtest.Fault, map[string]func() error{
		"no answer in time": func() error { return connect(t, b.url()).Publish(over, []*forward.Event{event("1")})[0] },
		"no broker answers": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			return gone.Publish(ctx, []*forward.Event{event("1")})[0]
		},
		"no topic": func() error {
			return connect(t, b.url()).Publish(t.Context(), []*forward.Event{forwardtest.Event("1", "")})[0]
		},
		"kgo.ErrRecordRetries": func() error { return answered(kerr.OutOfOrderSequenceNumber) },
		"kgo.ErrClientClosed": func() error {
			client, err := kgo.NewClient(kgo.SeedBrokers(b.ListenAddrs()...))
			forwardtest.Must(t, err)
			client.Close()
			p, err := outboxkafka.New(client, outboxkafka.Config{})
			forwardtest.Must(t, err)
			return p.Publish(t.Context(), []*forward.Event{event("1")})[0]
		},
	}, func(name string) []error {
		switch name {
		case "any other answer that the protocol calls retriable":
			return rest(func(e *kerr.Error) bool { return e.Retriable })
		case "any other answer":
			return rest(func(*kerr.Error) bool { return true })
		}
		return rest(func(e *kerr.Error) bool { return e.Message == name })
	})
}

// A broker refuses a batch as a whole for one of its records, whatever its answer is. The other
// events are sent.
func TestARecordThatIsRefusedLeavesItsBatchAlone(t *testing.T) {
	t.Parallel()
	for _, answer := range []*kerr.Error{kerr.PolicyViolation, kerr.InvalidRecord, kerr.MessageTooLarge, kerr.InvalidRequest} {
		b := newBroker(t)
		b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: answer, Count: -1, When: func(r kmsg.Request) bool {
			return bytes.Contains(r.AppendTo(nil), []byte("to be refused"))
		}})
		p, err := outboxkafka.Open(b.url(), outboxkafka.Config{Options: []kgo.Opt{
			kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(50 * time.Millisecond)}})
		forwardtest.Must(t, err)
		var events []*forward.Event
		for i := range 10 {
			events = append(events, event(fmt.Sprint(i))) // of one key, and so of one partition
		}
		events[4].Data = []byte(`"to be refused"`)
		errs := p.Publish(t.Context(), events)
		for i := range events {
			if errs == nil || (errs[i] != nil) != (i == 4) || i == 4 && !errors.Is(errs[i], answer) {
				t.Fatalf("%v: %v", answer, errs)
			}
		}
		if got := b.received(t, 9); len(got) != 9 {
			t.Errorf("%v: %d events arrived", answer, len(got))
		}
		p.Close()
	}
}

// The client fails all that waits for a partition with the first record's context. An event of a
// call that has ended is no reason for a later one's.
func TestAnEventThatCameTooLateLeavesLaterOnesAlone(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p, err := outboxkafka.Open(b.url(), outboxkafka.Config{Options: []kgo.Opt{kgo.RecordRetries(math.MaxInt)}})
	forwardtest.Must(t, err)
	defer p.Close()
	for range 4 { // it is so most times
		fault := b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
		ctx, cancel := context.WithCancel(t.Context())
		late := make(chan []error)
		go func() { late <- p.Publish(ctx, []*forward.Event{event("1")}) }()
		forwardtest.Must(t, fault.Wait(t.Context(), 1))
		cancel()
		if errs := <-late; forwardtest.Fault(errs[0]) != "the broker's" {
			t.Errorf("the late one: %v", errs)
		}
		next := make(chan []error)
		go func() { next <- p.Publish(t.Context(), []*forward.Event{event("2")}) }()
		fault.Remove()
		if errs := <-next; errs != nil {
			t.Errorf("the next one: %v", errs)
		}
	}
}

// A topic that was deleted and made again gets its events.
func TestATopicThatIsMadeAgainGetsItsEvents(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := connect(t, b.url())
	forwardtest.Publish(t, p, event("1"))
	forwardtest.Must(t, errors.Join(b.DeleteTopic(topic), b.CreateTopic(topic, 4, nil)))
	errs := p.Publish(t.Context(), []*forward.Event{event("2")})
	if errs != nil && forwardtest.Fault(errs[0]) != "the target's" {
		t.Error(errs)
	}
	if errs != nil {
		errs = p.Publish(t.Context(), []*forward.Event{event("2")})
	}
	if errs != nil {
		t.Error(errs)
	}
}

// A producer ID that was refused for lack of a right is asked for again.
func TestARightThatComesLate(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := connect(t, b.url())
	fault := b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true,
		Err: kerr.ClusterAuthorizationFailed, Count: -1})
	for range 2 {
		if errs := p.Publish(t.Context(), []*forward.Event{event("1")}); forwardtest.Fault(errors.Join(errs...)) != "the target's" || !errors.Is(errs[0], kerr.ClusterAuthorizationFailed) {
			t.Errorf("without the right: %v", errs)
		}
	}
	fault.Remove()
	forwardtest.Publish(t, p, event("1"))
}

// A login that is refused, as after a rotation of passwords, is an outage, and says why. The client
// logs in again with what the function of the login says then.
func TestARefusedLogin(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "shop", "new"))
	forwardtest.Must(t, err)
	defer c.Close()
	var password atomic.Value
	password.Store("old")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SASLAuthenticate}, TopLevel: true, Err: kerr.SaslAuthenticationFailed,
		Count: -1,
		When:  func(kmsg.Request) bool { return password.Load() == "old" }}) // kfake itself closes the connection
	login := plain.Plain(func(context.Context) (plain.Auth, error) {
		return plain.Auth{User: "shop", Pass: password.Load().(string)}, nil
	})
	p, err := outboxkafka.Open(c.ListenAddrs()[0], outboxkafka.Config{Options: []kgo.Opt{kgo.SASL(login)}})
	forwardtest.Must(t, err)
	defer p.Close()
	for limit := 100 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		errs := p.Publish(ctx, []*forward.Event{event("1")})
		if forwardtest.Fault(errors.Join(errs...)) != "the broker's" {
			t.Fatal(errs)
		}
		if strings.Contains(errs[0].Error(), "SASL_AUTHENTICATION_FAILED") {
			break
		}
		if limit > time.Minute {
			t.Fatalf("it does not say why: %v", errs)
		}
	}
	password.Store("new")
	forwardtest.Publish(t, p, event("1"))
}
