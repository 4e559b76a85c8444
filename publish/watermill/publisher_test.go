package outboxwatermill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
)

// pubsub is a message.Publisher that keeps what it gets. answer decides on each call.
type pubsub struct {
	answer func(topic string, messages []*message.Message) error

	mu    sync.Mutex
	calls []string
}

func (p *pubsub) Publish(topic string, messages ...*message.Message) error {
	call := topic
	for _, m := range messages {
		call += " " + m.UUID
	}
	p.mu.Lock()
	p.calls = append(p.calls, call)
	p.mu.Unlock()
	if p.answer == nil {
		return nil
	}
	return p.answer(topic, messages)
}

func (p *pubsub) Close() error { return errors.New("closed by someone else") }

func (p *pubsub) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// to are events with the ids 0 and on, to these topics.
func to(topics ...string) (all []*forward.Event) {
	for i, topic := range topics {
		all = append(all, &forward.Event{ID: fmt.Sprint(i), Source: "/shop", Type: "order.placed", To: topic,
			Data: []byte("{}"), Attempt: 1})
	}
	return all
}

func TestEventsAreGroupedByTopicInTheirOrder(t *testing.T) {
	t.Parallel()
	ps := &pubsub{}
	p := outboxwatermill.New(ps, outboxwatermill.Config{})
	defer p.Close()
	if errs := p.Publish(t.Context(), to("b", "a", "b", "b", "a")); errs != nil {
		t.Error(errs)
	}
	calls := ps.seen()
	slices.Sort(calls)
	if got := strings.Join(calls, "|"); got != "a 1 4|b 0 2 3" {
		t.Errorf("the calls are %s", got)
	}
	if errs := p.Publish(t.Context(), nil); errs != nil {
		t.Error(errs)
	}
}

func TestAnErrorIsThatOfItsTopicsEvents(t *testing.T) {
	t.Parallel()
	down, refused, odd := errors.New("down"), errors.New("refused"), errors.New("odd")
	ps := &pubsub{answer: func(topic string, _ []*message.Message) error {
		if topic == "panic" {
			panic("oops")
		}
		return map[string]error{"down": down, "refused": refused, "odd": odd}[topic]
	}}
	p := outboxwatermill.New(ps, outboxwatermill.Config{Classify: func(err error) error {
		switch err {
		case down:
			return forward.Unavailable(err, time.Second)
		case refused:
			return forward.Permanent(err)
		}
		return nil // is no success
	}})
	defer p.Close()
	topics := []string{"down", "fine", "odd", "refused", "down", "panic"}
	errs := p.Publish(t.Context(), to(topics...))
	if len(errs) != len(topics) {
		t.Fatalf("%d errors", len(errs))
	}
	for i, topic := range topics {
		after, away := forward.IsUnavailable(errs[i])
		if away != (topic == "down") || away && after != time.Second ||
			forward.IsPermanent(errs[i]) != (topic == "refused") || (errs[i] == nil) != (topic == "fine") {
			t.Errorf("%s: %v", topic, errs[i])
		}
		if want := map[string]error{"down": down, "refused": refused, "odd": odd}[topic]; want != nil &&
			!errors.Is(errs[i], want) {
			t.Errorf("%s: %v does not wrap the error", topic, errs[i])
		}
	}
	if plain := outboxwatermill.New(ps, outboxwatermill.Config{}).Publish(t.Context(), to("down")); !errors.Is(plain[0],
		down) || forward.IsPermanent(plain[0]) {
		t.Errorf("without Classify: %v", plain)
	} else if _, away := forward.IsUnavailable(plain[0]); away {
		t.Error("without Classify an error is unavailable")
	}
}

// A call of Watermill that hangs holds up neither Publish nor other calls and topics, only Close.
func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	hangs, end := make(chan struct{}), make(chan struct{})
	ps := &pubsub{answer: func(topic string, messages []*message.Message) error {
		if topic != "slow" {
			return nil
		}
		close(hangs)
		<-messages[0].Context().Done()
		<-end
		return nil
	}}
	p := outboxwatermill.New(ps, outboxwatermill.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hangs
		cancel()
	}()
	errs := p.Publish(ctx, to("slow", "slow"))
	for i, err := range errs {
		if _, away := forward.IsUnavailable(err); !away || !errors.Is(err, context.Canceled) {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if len(errs) != 2 {
		t.Errorf("%d errors", len(errs))
	}
	if errs := p.Publish(t.Context(), to("fast")); errs != nil {
		t.Error(errs)
	}
	closed := make(chan struct{})
	go func() {
		p.Close()
		p.Close()
		close(closed)
	}()
	relaytest.Eventually(t, time.Minute, "Close has begun", func() bool { return p.Ready(t.Context()) != nil })
	if _, away := forward.IsUnavailable(p.Publish(t.Context(), to("fast"))[0]); !away {
		t.Error("a closed Publisher publishes")
	}
	select {
	case <-closed:
		t.Error("Close did not wait")
	default:
	}
	close(end)
	<-closed
	if got := strings.Join(ps.seen(), "|"); got != "slow 0 1|fast 0" {
		t.Errorf("the calls are %s", got)
	}
}

func TestReadyAsksTheApp(t *testing.T) {
	t.Parallel()
	var err error
	p := outboxwatermill.New(&pubsub{}, outboxwatermill.Config{Ready: func(context.Context) error { return err }})
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if err = errors.New("no broker"); !errors.Is(p.Ready(t.Context()), err) {
		t.Error("Ready does not say why")
	}
	p.Close()
	if err = nil; p.Ready(t.Context()) == nil {
		t.Error("Ready after Close")
	}
}
