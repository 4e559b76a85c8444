package outboxamqp

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

// lane is an AMQP channel, and another one after that was closed. One call of Publish has it at a
// time.
type lane struct {
	p       *Publisher
	conn    *conn
	ch      *amqp.Channel // nil if there is none
	returns <-chan amqp.Return
	closes  <-chan *amqp.Error
}

// inFlight is an event that waits for its confirm.
type inFlight struct {
	event   int
	confirm *amqp.DeferredConfirmation
}

// returned tells which messages a basic.return means.
type returned struct{ id, to string }

// publish settles the events of a group. The error is that of the events which it does not settle,
// and of all later ones.
func (l *lane) publish(ctx context.Context, b *batch, group []int) error {
	lost, fault, err := l.sendIn(ctx, b, group, false)
	if err == nil && len(lost) == 1 && len(group) == 1 && !endsConnection(fault) {
		return l.refuse(b, lost[0], fault)
	}
	// One of them closed the channel, or the connection, which other lanes have as well. Each by itself
	// shows which: of the connection, while no other lane sends.
	for closed, n := 0, 0; err == nil && n < len(lost); n++ {
		alone := endsConnection(fault)
		var again []int
		if again, fault, err = l.sendIn(ctx, b, lost[n:n+1], alone); err != nil {
			break
		}
		if endsConnection(fault) && !alone { // perhaps over another lane's event
			n--
			continue
		}
		if closed++; !endsConnection(fault) {
			closed = 0
		}
		if len(again) > 0 {
			err = l.refuse(b, again[0], fault)
		}
		if closed == 2 { // so it is not the events
			err = l.connectionLost(fault)
		}
	}
	return err
}

// refuse settles an event over which the broker closed the channel or the connection. The error is
// that of all other events: their exchange is missing.
func (l *lane) refuse(b *batch, i int, fault *amqp.Error) error {
	err := l.p.refused(fault)
	b.settle(i, err)
	if fault != nil && fault.Code == amqp.NotFound {
		return err
	}
	return nil
}

// sendIn is send once the gate lets it.
func (l *lane) sendIn(ctx context.Context, b *batch, group []int, alone bool) (lost []int, fault *amqp.Error, err error) {
	leave, ok := l.p.gate.enter(ctx, alone)
	if !ok {
		return nil, nil, l.p.ended(ctx, "another call sends an event by itself")
	}
	defer leave()
	return l.send(ctx, b, group)
}

// send publishes events and settles those that the broker answers. lost are the others where the
// broker closed the channel, or the connection over an event, for the fault. err means that nothing
// can be sent any more.
func (l *lane) send(ctx context.Context, b *batch, group []int) (lost []int, fault *amqp.Error, err error) {
	if err := l.open(ctx); err != nil {
		return nil, nil, err
	}
	sent, unsent, failure := l.write(ctx, b, group)
	back := map[returned]bool{}
	for _, f := range sent {
		if gaveUp := l.wait(ctx, f.confirm); gaveUp != nil {
			err = gaveUp
			continue
		}
		// The broker returns a message before it confirms it, and the library hands both on in
		// order. So the return is in the channel by now.
		l.drain(back)
		e := b.events[f.event]
		switch {
		case f.confirm.Acked() && back[returned{e.ID, e.To}]:
			b.settle(f.event, l.p.unroutable(e.To))
		case f.confirm.Acked():
			b.settle(f.event, nil)
		case l.ch.IsClosed(): // no answer: the library fails all confirms then
			lost = append(lost, f.event)
		default:
			b.settle(f.event, l.p.nacked(e.To))
		}
	}
	switch {
	case ctx.Err() != nil && (err != nil || failure != nil):
		l.discard()
		return nil, nil, l.p.ended(ctx, "no confirm")
	case err != nil:
		l.discard()
		return nil, nil, err
	case failure != nil && !l.ch.IsClosed(): // of the socket: the library closes the connection
		l.conn.kill()
		l.ch = nil
		return nil, nil, l.connectionLost(failure)
	case failure != nil, len(lost) > 0:
		select {
		case fault = <-l.closes: // closed at the end, also without a fault
		case <-ctx.Done():
			return nil, nil, l.p.ended(ctx, "no confirm")
		}
		l.ch = nil
		switch {
		case !l.conn.IsClosed() || endsConnection(fault):
			return append(lost, unsent...), fault, nil
		case fault != nil:
			failure = fault
		}
		return nil, nil, l.connectionLost(failure)
	}
	return nil, nil, nil
}

// connectionLost is the error of events whose connection was lost.
func (l *lane) connectionLost(why error) error {
	if why == nil {
		why = amqp.ErrClosed
	}
	return forward.Unavailable(fmt.Errorf("outboxamqp: %s: the connection was lost: %w", l.p.dialing.name, why), 0)
}

// write sends events. unsent are those after an error.
func (l *lane) write(ctx context.Context, b *batch, group []int) (sent []inFlight, unsent []int, err error) {
	defer l.conn.guard(ctx)()
	for n, i := range group {
		e := b.events[i]
		m, err := newMessage(e, l.conn.Config.FrameSize)
		if err != nil {
			b.settle(i, forward.Permanent(err))
			continue
		}
		confirm, err := l.ch.PublishWithDeferredConfirmWithContext(ctx, l.p.config.Exchange, e.To, true, false, m)
		if err != nil {
			return sent, group[n:], err
		}
		sent = append(sent, inFlight{i, confirm})
	}
	return sent, nil, nil
}

// wait returns nil when the confirm is there, and an error if it is not worth waiting for.
func (l *lane) wait(ctx context.Context, confirm *amqp.DeferredConfirmation) error {
	select {
	case <-confirm.Done():
		return nil
	default:
	}
	blocked, _ := l.conn.block()
	select {
	case <-confirm.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-blocked:
		return forward.Unavailable(fmt.Errorf("outboxamqp: %s: the broker has blocked the connection",
			l.p.dialing.name), 0)
	}
}

// drain notes the messages that came back.
func (l *lane) drain(back map[returned]bool) {
	for {
		select {
		case r, open := <-l.returns:
			if !open {
				return
			}
			back[returned{r.MessageId, r.RoutingKey}] = true
		default:
			return
		}
	}
}

// open makes sure of a channel on a connection that works.
func (l *lane) open(ctx context.Context) error {
	c, err := l.p.connection(ctx)
	if err != nil {
		return err
	}
	if err := c.unblocked(); err != nil {
		return forward.Unavailable(err, 0)
	}
	if l.conn == c && l.ch != nil && !l.ch.IsClosed() {
		return nil
	}
	l.conn, l.ch = c, nil
	defer c.guard(ctx)()
	ch, err := c.Channel()
	if err == nil {
		l.ch = ch
		if err = ch.Confirm(false); err != nil {
			l.discard()
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return l.p.ended(ctx, "open a channel")
	default:
		return forward.Unavailable(fmt.Errorf("outboxamqp: %s: open a channel: %w", l.p.dialing.name, err), 0)
	}
	l.returns, l.closes = ch.NotifyReturn(make(chan amqp.Return, window)), ch.NotifyClose(make(chan *amqp.Error, 1))
	return nil
}

// discard closes a channel that still waits for confirms. The broker may be slow to answer.
func (l *lane) discard() {
	ch := l.ch
	l.ch = nil
	l.p.running.Go(func() { _ = ch.Close() })
}

// gate lets lanes send: several at once, or one alone.
type gate struct {
	places chan struct{} // as many as there are lanes
	alone  chan struct{} // of one that takes all places
}

func newGate(lanes int) gate {
	return gate{places: make(chan struct{}, lanes), alone: make(chan struct{}, 1)}
}

// enter waits until the lane may send. ok is false if ctx ends first.
func (g gate) enter(ctx context.Context, alone bool) (leave func(), ok bool) {
	want, taken := 1, 0
	leave = func() {
		for range taken {
			<-g.places
		}
		if alone {
			<-g.alone
		}
	}
	if alone {
		select {
		case g.alone <- struct{}{}:
		case <-ctx.Done():
			return nil, false
		}
		want = cap(g.places)
	}
	for ; taken < want; taken++ {
		select {
		case g.places <- struct{}{}:
		case <-ctx.Done():
			leave()
			return nil, false
		}
	}
	return leave, true
}

// window is how many events a channel has in flight at most. The channel has room for as many
// returned messages, so the library's reader never waits for it to be drained.
const window = 256

var errUnsettled = errors.New("outboxamqp: not settled")

// batch has the events of one call of Publish, and the result of each.
type batch struct {
	events []*forward.Event
	errs   []error          // errUnsettled at first
	next   int              // the first event that was in no group
	held   map[string]error // keys whose last event is to be retried
}

func newBatch(events []*forward.Event) *batch {
	return &batch{events: events, errs: publisher.All(events, errUnsettled), held: map[string]error{}}
}

// group returns the next events that may be in flight together: one of each key. It is empty at the
// end.
func (b *batch) group() (group []int) {
	keys := map[string]bool{}
	for ; b.next < len(b.events) && len(group) < window; b.next++ {
		if key := b.events[b.next].OrderingKey; key != "" {
			if keys[key] {
				break
			}
			if err := b.held[key]; err != nil { // which is no answer to this one: no attempt counts
				b.settle(b.next, forward.Unavailable(fmt.Errorf("outboxamqp: not sent, as an earlier event of its "+
					"key failed: %v", err), 0))
				continue
			}
			keys[key] = true
		}
		group = append(group, b.next)
	}
	return group
}

// settle notes the result of an event; nil means that it is published. Later events of its key wait
// for its retry.
func (b *batch) settle(i int, err error) {
	b.errs[i] = err
	if key := b.events[i].OrderingKey; err != nil && key != "" && !forward.IsPermanent(err) {
		b.held[key] = err
	}
}

// end settles the others, and returns the result of Publish.
func (b *batch) end(err error) []error {
	for i := range b.errs {
		if b.errs[i] == errUnsettled {
			b.settle(i, err)
		}
	}
	return publisher.Result(b.errs)
}
