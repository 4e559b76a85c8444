package outboxwatermill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
	"github.com/txoutbox/outbox/relay"
)

// Events that a broker never takes use up no attempt of their neighbours, however often they are in
// one call.
func TestABadEventUsesNoAttemptOfOthers(t *testing.T) {
	t.Parallel()
	const good, every = 950, 20
	for name, answer := range map[string]func(){"an error": nil, "a panic": func() { panic("oops") }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, db, reg := newBroker(), relaytest.NewDatabase(t), handlers.New()
			ps := &pubsub{answer: func(topic string, messages []*message.Message) error {
				err := b.answer(topic, messages)
				if err != nil && answer != nil {
					answer()
				}
				return err
			}}
			p := open(t, ps, outboxwatermill.Config{})
			forward.Register(reg, forwardtest.Placed, p, forward.To("orders"),
				forward.HandlerOptions(handlers.MaxAttempts(5), handlers.Retention(time.Hour), relaytest.RetrySoon()))
			db.Do(t, `INSERT INTO outbox.task (task_type, payload)
				SELECT $1, jsonb_build_object('n', CASE WHEN n % $3 = 0 THEN -1 ELSE n END) FROM generate_series(1, $2::int) AS n`,
				forwardtest.Placed.Name(), good+good/(every-1), every)
			relaytest.Run(t, db.DB, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
			forwardtest.NothingLeft(t, db)
			db.Want(t, "950 1", `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`)
			db.Want(t, "50 5 -1", `SELECT concat_ws(' ', count(*), min(attempt), max(payload ->> 'n')) FROM outbox.dead_task`)
			if n := len(strings.Fields(arrivedOnce(b))); n != good {
				t.Errorf("%d good events arrived", n)
			}
		})
	}
}

// arrivedOnce are the ids of what has arrived, each once.
func arrivedOnce(b *broker) (ids string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[string]bool{}
	for _, r := range b.stored {
		if !seen[r.ID] {
			seen[r.ID], ids = true, ids+" "+r.ID
		}
	}
	return ids
}

// After an error of a call its events go one by one, until one says that the topic or the broker
// takes nothing. What is not sent, also at the end of the time limit, says so, and is no late
// answer.
func TestAfterAnErrorOfACallItsEventsGoOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, down, full := errors.New("refused"), forward.Unavailable(errDown, 0), forward.TargetUnavailable(errUnready, 0)
		for _, c := range []struct {
			first, third error // of the call for all, and of the third event alone
			keys         string
			want         string
		}{
			{refused, refused, "", "none, none, the event's, none, none"},
			{forward.Permanent(refused), forward.Permanent(refused), "kkkkk", "none, none, the event's, for good, none, none"},
			{refused, refused, "k_k_k", "none, none, the event's, none, not sent"},
			{refused, down, "", "none, none, the broker's, not sent, not sent"},
			{refused, full, "", "none, none, the target's, not sent, not sent"},
			{refused, handlers.Snooze(time.Hour), "", "none, none, the event's, not sent, not sent"},
			{down, nil, "", "the broker's, the broker's, the broker's, the broker's, the broker's"},
			{full, nil, "", "the target's, the target's, the target's, the target's, the target's"},
			{handlers.RetryAfter(time.Hour, nil), nil, "", "the event's, the event's, the event's, the event's, the event's"},
			{refused, nil, "", "none, none, none, none, none"},
			{refused, context.DeadlineExceeded, "", "none, none, late, not sent, not sent"},
		} {
			ps := &pubsub{answer: func(_ string, messages []*message.Message) error {
				switch {
				case len(messages) > 1:
					return c.first
				case messages[0].UUID == "2" && c.third == context.DeadlineExceeded:
					<-messages[0].Context().Done()
					return c.third
				case messages[0].UUID == "2":
					return c.third
				}
				return nil
			}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			events := to("orders", "orders", "orders", "orders", "orders")
			for i, key := range c.keys {
				events[i].OrderingKey = strings.Trim(string(key), "_")
			}
			p := open(t, ps, outboxwatermill.Config{})
			errs := p.Publish(ctx, events)
			p.Close()
			cancel()
			var got []string
			for i := range events {
				var err error
				if errs != nil {
					err = errs[i]
				}
				fault := forwardtest.Fault(err)
				late := errors.Is(err, context.DeadlineExceeded)
				if strings.Contains(fmt.Sprint(err), "not sent") && !late {
					fault = "not sent"
				} else if late {
					fault = "late"
				}
				got = append(got, fault)
			}
			if text := strings.Join(got, ", "); text != c.want {
				t.Errorf("after %v, and %v of the third: %s, want %s", c.first, c.third, text, c.want)
			}
		}
	})
}

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
		forwardtest.Publish(t, p, to("hangs", "fine")...)
		p.Close()
	})
}
