package outboxwatermill_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
)

// docs/faults.md says of each result whose fault it is.
func TestTheMapOfWatermill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, end := errors.New("bad"), make(chan struct{})
		ps := &pubsub{answer: func(topic string, messages []*message.Message) error {
			switch topic {
			case "hangs":
				<-messages[0].Context().Done()
				<-end
			case "panics":
				panic("oops")
			case "fine":
				return nil
			}
			return bad
		}}
		publish := func(classify func(error) error, topics ...string) error {
			p := open(t, ps, outboxwatermill.Config{Classify: classify})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return p.Publish(ctx, to(topics...))[0]
		}
		mark := func(as func(error, time.Duration) error) func(error) error {
			return func(err error) error { return as(err, 0) }
		}
		closed := open(t, ps, outboxwatermill.Config{})
		closed.Close()
		faultmap.Check(t, "Watermill", forwardtest.Fault, map[string]func() error{
			"an error that Config.Classify marks forward.Permanent":         func() error { return publish(forward.Permanent, "bad") },
			"an error that Config.Classify marks forward.TargetUnavailable": func() error { return publish(mark(forward.TargetUnavailable), "bad") },
			"an error that Config.Classify marks forward.Unavailable":       func() error { return publish(mark(forward.Unavailable), "bad") },
			"any other error":    func() error { return publish(func(error) error { return nil }, "bad", "fine") },
			"a panic":            func() error { return publish(nil, "panics") },
			"no answer in time":  func() error { return publish(nil, "hangs") },
			"a closed Publisher": func() error { return closed.Publish(t.Context(), to("fine"))[0] },
			"four calls for the topic hang": func() error {
				p := open(t, ps, outboxwatermill.Config{})
				for range 4 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					p.Publish(ctx, to("hangs"))
				}
				return p.Publish(t.Context(), to("hangs"))[0]
			},
		}, nil)
		close(end)
	})
}

// A topic whose calls hang holds up no other topic, however long.
func TestATopicThatHangsLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		ps := &pubsub{answer: func(topic string, _ []*message.Message) error {
			if topic == "hangs" {
				<-end
			}
			return nil
		}}
		p := open(t, ps, outboxwatermill.Config{})
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if errs := p.Publish(ctx, to("hangs", "fine")); errs[0] == nil || errs[1] != nil {
				t.Fatal(errs)
			}
			cancel()
		}
		close(end)
		synctest.Wait()
		forwardtest.Must(t, errors.Join(p.Publish(t.Context(), to("hangs", "fine"))...))
		p.Close()
	})
}
